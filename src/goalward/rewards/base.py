"""A reward is what the reward-based baselines are trained on; the contrastive methods never read it."""

from __future__ import annotations

from typing import Any, Protocol

import jax


class Reward(Protocol):
    """Rates one step; pass your own object to `goalward.make` to try another shaping."""

    name: str

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [N] float32, the reward of each agent."""
        ...
