"""Rewards of the JaxGCRL tasks, with the constants of that suite."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_PROGRESS_COEF = 10.0
_HEALTHY_BONUS = 1.0  # paid at every step, as a fall ends the episode
_EFFORT_COEF = 0.5


class Dense:
    """Arm: minus the distance in metres. Ant: ten times the speed towards the target, a bonus, minus the effort."""

    name = "dense"

    def __init__(self, env: Any) -> None:
        self._distance = env.distance
        self._dt = env.dt
        self._pays_progress = env.pays_progress

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [1]."""
        distance = self._distance(next_state)
        if not self._pays_progress:
            return -distance
        speed = (self._distance(state) - distance) / self._dt
        return _PROGRESS_COEF * speed + _HEALTHY_BONUS - _EFFORT_COEF * jnp.square(action).sum(-1)


class Sparse:
    """+1 at every step that ends within reach of the target."""

    name = "sparse"

    def __init__(self, env: Any) -> None:
        self._is_at_goal = env.is_at_goal

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [1]."""
        del state, action
        return self._is_at_goal(next_state).astype(jnp.float32)
