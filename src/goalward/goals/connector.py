"""Goals of Connector, whose states hold `position [N, 2]` and `target [N, 2]` as (row, column)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


class Distance:
    """Bring your own distance to zero: moves to the target on an empty grid, over the longest way, 2 (S - 1)."""

    name = "distance"
    dim = 1

    def __init__(self, env: Any) -> None:
        self._longest = env.longest_path

    def achieved(self, state: Any) -> jax.Array:
        """Returns [N, 1], the Manhattan distance of each agent from its target, in [0, 1]."""
        return state.distance[:, None].astype(jnp.float32) / self._longest

    def target(self, state: Any) -> jax.Array:
        """Returns [N, 1] zeros."""
        return jnp.zeros((state.position.shape[0], 1))


class TotalDistance:
    """Bring the team's mean distance to zero: one number, the same for every agent."""

    name = "total_distance"
    dim = 1

    def __init__(self, env: Any) -> None:
        self._longest = env.longest_path

    def achieved(self, state: Any) -> jax.Array:
        """Returns [N, 1], the mean over the team of the Manhattan distances, in [0, 1]."""
        mean = jnp.mean(state.distance, dtype=jnp.float32) / self._longest
        return jnp.broadcast_to(mean, (state.position.shape[0], 1))

    def target(self, state: Any) -> jax.Array:
        """Returns [N, 1] zeros."""
        return jnp.zeros((state.position.shape[0], 1))


class AllConnected:
    """Have the whole team connected: one number, the same for every agent."""

    name = "all_connected"
    dim = 1

    def __init__(self, env: Any) -> None:
        del env

    def achieved(self, state: Any) -> jax.Array:
        """Returns [N, 1], the share of agents that are connected."""
        share = jnp.mean(state.connected, dtype=jnp.float32)
        return jnp.broadcast_to(share, (state.position.shape[0], 1))

    def target(self, state: Any) -> jax.Array:
        """Returns [N, 1] ones."""
        return jnp.ones((state.position.shape[0], 1))


class TargetPositions:
    """Be at your target: (row, column) over S - 1."""

    name = "target_positions"
    dim = 2

    def __init__(self, env: Any) -> None:
        self._extent = env.grid_size - 1.0

    def achieved(self, state: Any) -> jax.Array:
        """Returns [N, 2], where each agent is."""
        return state.position.astype(jnp.float32) / self._extent

    def target(self, state: Any) -> jax.Array:
        """Returns [N, 2], where each agent should be."""
        return state.target.astype(jnp.float32) / self._extent
