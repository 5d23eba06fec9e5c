"""The goal of JaxNav, whose states hold `position [N, 2]` and `target [N, 2]` in metres."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


class Distance:
    """Bring your own distance to zero: the straight line to the target over the diagonal of the map.

    Zero itself is hardly ever met: an agent wins by coming within the goal radius, once.
    """

    name = "distance"
    dim = 1

    def __init__(self, env: Any) -> None:
        self._diagonal = env.diagonal

    def achieved(self, state: Any) -> jax.Array:
        """Returns [N, 1], the Euclidean distance of each agent from its target, in [0, 1]."""
        return state.distance[:, None] / self._diagonal

    def target(self, state: Any) -> jax.Array:
        """Returns [N, 1] zeros."""
        return jnp.zeros((state.position.shape[0], 1))
