"""What a reward is worth over time: generalised advantage estimation and the loss of a value function."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def generalised_advantages(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    done: jax.Array,
    *,
    gamma: float | jax.Array,
    gae_lambda: float | jax.Array,
) -> jax.Array:
    """Returns [T, ...], the advantages of GAE(lambda), the sum of (gamma lambda)^k delta_{t+k} within the episode.

    A termination is the end of all rewards; a truncation is not, so the value of the state in which the episode was
    cut off stands for the rest. Neither lets anything of the next episode through.

    Args:
        reward: [T, ...].
        value: [T, ...], of the states that were acted in.
        next_value: [T, ...], of the states after each step, before any reset.
        terminated: [T, ...] bool, the episode ended for a reason inside the task.
        done: [T, ...] bool, the episode ended, for whatever reason.
        gamma: discount.
        gae_lambda: 0 trusts the value function, 1 the rewards.

    """
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = gamma * gae_lambda * (1.0 - done.astype(jnp.float32))

    def back(later: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, decay = step
        adv = delta + decay * later
        return adv, adv

    _, adv = jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return adv


def value_loss(value: jax.Array, target: jax.Array, old_value: jax.Array, clip: float | jax.Array | None) -> jax.Array:
    """Returns [...], half the squared error; with `clip`, the worse of it and that of a value held near the old one."""
    loss = 0.5 * jnp.square(value - target)
    if clip is None:
        return loss
    held = old_value + jnp.clip(value - old_value, -clip, clip)
    return jnp.maximum(loss, 0.5 * jnp.square(held - target))
