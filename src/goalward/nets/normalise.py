"""Running mean and variance of observations."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class RunningStats(NamedTuple):
    """Moments of all observations seen so far, per dimension."""

    num_rows: jax.Array  # [] float32
    mean: jax.Array  # [D]
    variance: jax.Array  # [D]


def init_stats(dim: int) -> RunningStats:
    """Returns the moments of no data, which normalise to the identity."""
    return RunningStats(jnp.zeros(()), jnp.zeros(dim), jnp.ones(dim))


def update_stats(stats: RunningStats, obs: jax.Array) -> RunningStats:
    """Returns the moments of the old data and `obs` [..., D] together."""
    rows = obs.reshape(-1, obs.shape[-1])
    new = jnp.float32(rows.shape[0])
    total = stats.num_rows + new
    delta = rows.mean(0) - stats.mean
    mean = stats.mean + delta * new / total
    within = stats.variance * stats.num_rows + rows.var(0) * new
    return RunningStats(total, mean, (within + jnp.square(delta) * stats.num_rows * new / total) / total)


def normalise(stats: RunningStats, obs: jax.Array) -> jax.Array:
    """Returns `obs` shifted and scaled to mean 0 and variance 1, cut off at 10 standard deviations."""
    mean, scale = (jnp.broadcast_to(x, obs.shape) for x in (stats.mean, jax.lax.rsqrt(stats.variance + 1e-8)))
    return jnp.clip((obs - mean) * scale, -10.0, 10.0)
