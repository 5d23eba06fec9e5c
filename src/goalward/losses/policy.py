"""The policy side of PPO: normalised advantages and the clipped surrogate objective."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from goalward.losses.contrastive import masked_mean


class SurrogateStats(NamedTuple):
    """How far an update moved the policy, each a mean over active rows."""

    approx_kl: jax.Array  # estimate of KL(old || new), mean of r - 1 - log r
    clip_fraction: jax.Array  # share of rows whose ratio lies outside the clip range


def normalise_advantage(adv: jax.Array, active: jax.Array, std_floor: float | jax.Array) -> jax.Array:
    """Returns advantages with mean 0 and standard deviation 1 over the active rows.

    The standard deviation is not taken below `std_floor`: once all advantages are small, dividing by their spread
    would turn estimation noise into full-sized steps.
    """
    mean = masked_mean(adv, active)
    std = jnp.sqrt(masked_mean(jnp.square(adv - mean), active))
    return (adv - mean) / jnp.maximum(std, std_floor)


def clipped_surrogate(
    log_prob: jax.Array,
    old_log_prob: jax.Array,
    adv: jax.Array,
    active: jax.Array,
    clip: float | jax.Array,
) -> tuple[jax.Array, SurrogateStats]:
    """Returns the negated objective of equation 4 over the active rows, and its statistics."""
    log_ratio = log_prob - old_log_prob
    ratio = jnp.exp(log_ratio)
    objective = jnp.minimum(ratio * adv, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * adv)
    stats = SurrogateStats(
        approx_kl=masked_mean(ratio - 1.0 - log_ratio, active),
        clip_fraction=masked_mean(jnp.abs(ratio - 1.0) > clip, active),
    )
    return -masked_mean(objective, active), stats
