"""Goals of the built-in tasks, whose states all hold `position [N, 2]` and `target [N, 2]`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


class Position:
    """Be at the target: coordinates, scaled to [-1, 1]."""

    name = "position"
    dim = 2

    def __init__(self, env: Any) -> None:
        self._extent = env.extent

    def achieved(self, state: Any) -> jax.Array:
        """Returns [N, 2], where each agent is."""
        return _scaled(state.position, self._extent)

    def target(self, state: Any) -> jax.Array:
        """Returns [N, 2], where each agent should be."""
        return _scaled(state.target, self._extent)


class Distance:
    """Bring the distance to the target to zero: one number, scaled to [0, 1]."""

    name = "distance"
    dim = 1

    def __init__(self, env: Any) -> None:
        self._extent = env.extent

    def achieved(self, state: Any) -> jax.Array:
        """Returns [N, 1], the Manhattan distance of each agent from its target."""
        gap = jnp.abs(state.position - state.target).sum(-1, keepdims=True)
        return gap.astype(jnp.float32) / (2.0 * self._extent)

    def target(self, state: Any) -> jax.Array:
        """Returns [N, 1] zeros."""
        return jnp.zeros((state.position.shape[0], 1))


def _scaled(position: jax.Array, extent: float) -> jax.Array:
    return 2.0 * position.astype(jnp.float32) / extent - 1.0
