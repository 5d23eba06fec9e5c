"""Rewards of Navix, whose states say what the last step did: `reached` the goal, `hit_wall`.

The suite's own `wall_hit_cost` is a bonus, not a cost, and goes on for the rest of the episode.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_STEP_COST = 0.01
_WALL_COST = 0.01


class Shaped:
    """+1 on reaching the goal, -0.01 for every step and another -0.01 for running into a wall."""

    name = "shaped"

    def __init__(self, env: Any) -> None:
        del env

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [1]."""
        del state, action
        return (_arrival(next_state) - _STEP_COST - _WALL_COST * next_state.hit_wall.astype(jnp.float32))[None]


class Sparse:
    """+1 on reaching the goal, otherwise nothing."""

    name = "sparse"

    def __init__(self, env: Any) -> None:
        del env

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [1]."""
        del state, action
        return _arrival(next_state)[None]


def _arrival(next_state: Any) -> jax.Array:
    return next_state.reached.astype(jnp.float32)
