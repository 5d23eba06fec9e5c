"""Goals of the JaxGCRL tasks, whose states all hold `position [1, G]` and `target [1, G]`."""

from __future__ import annotations

from typing import Any

import jax


class Position:
    """Be at the target: coordinates in metres, as the observation has them."""

    name = "position"

    def __init__(self, env: Any) -> None:
        self.dim = env.target_dim

    def achieved(self, state: Any) -> jax.Array:
        """Returns [1, G], where the tip of the arm or the torso is."""
        return state.position

    def target(self, state: Any) -> jax.Array:
        """Returns [1, G], where it should be."""
        return state.target
