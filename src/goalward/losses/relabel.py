"""Hindsight relabelling: a later achieved goal of the same episode becomes a step's positive (Algorithm 1, line 4).

For step t with `remaining[t] = n` steps left in its episode, or in the rollout where that is cut first, the
offset k in {0, ..., n - 1} has probability gamma^k (1 - gamma) / (1 - gamma^n): the discounted occupancy measure
of equation 1, renormalised over what was seen. The positive is `next_achieved[t + k]`, so the achieved goal of the
terminal state is included and the goal achieved before the action is not.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Discount(NamedTuple):
    """A traced discount by its logarithm: in float32, 0.9999 itself is off by up to 0.03 % of what it lacks to 1."""

    log: jax.Array  # []


def remaining_steps(done: jax.Array) -> jax.Array:
    """Returns [T, E] int32, the steps left from t to the end of its episode or of the rollout, t included.

    Args:
        done: [T, E] bool, true on the last step of an episode.

    """
    num_steps = done.shape[0]
    time = jnp.arange(num_steps, dtype=jnp.int32)[:, None]
    last = jnp.where(done, time, num_steps - 1)
    return jax.lax.cummin(last, axis=0, reverse=True) - time + 1


def episode_ids(done: jax.Array) -> jax.Array:
    """Returns [T, E] int32, equal for two steps if and only if they belong to one episode of one environment."""
    num_steps, num_envs = done.shape
    ended_before = jnp.cumsum(done, axis=0, dtype=jnp.int32) - done.astype(jnp.int32)
    return ended_before + (num_steps + 1) * jnp.arange(num_envs, dtype=jnp.int32)[None, :]


def sample_offsets(key: jax.Array, remaining: jax.Array, gamma: float | Discount) -> jax.Array:
    """Returns int32 offsets shaped like `remaining`, from the truncated geometric distribution above."""
    # A plain number is taken to the logarithm before it is rounded to float32, where 1 - 1e-8 would become 1.
    log_gamma = gamma.log if isinstance(gamma, Discount) else jnp.float32(math.log(gamma))
    uniform = jax.random.uniform(key, remaining.shape)
    # Inverse of the distribution function; expm1 and log1p keep gamma = 0.9999 with n = 1 exact in float32.
    beyond = uniform * jnp.expm1(remaining.astype(jnp.float32) * log_gamma)
    offset = jnp.floor(jnp.log1p(beyond) / log_gamma).astype(jnp.int32)
    return jnp.clip(offset, 0, remaining - 1)


def sample_future_goals(
    key: jax.Array, next_achieved: jax.Array, done: jax.Array, gamma: float | Discount
) -> jax.Array:
    """Returns [T, E, N, G], for every step and agent a goal that the same agent achieved later in the episode.

    Args:
        key: random key.
        next_achieved: [T, E, N, G], the goal achieved by each step, before any reset.
        done: [T, E] bool, true on the last step of an episode.
        gamma: discount of the occupancy measure, in (0, 1).

    """
    num_steps, num_envs, num_agents, _ = next_achieved.shape
    remaining = jnp.broadcast_to(remaining_steps(done)[..., None], (num_steps, num_envs, num_agents))
    future = jnp.arange(num_steps)[:, None, None] + sample_offsets(key, remaining, gamma)
    return next_achieved[future, jnp.arange(num_envs)[None, :, None], jnp.arange(num_agents)[None, None, :]]
