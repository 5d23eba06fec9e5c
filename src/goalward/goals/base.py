"""A goal says which part of a state counts, and what it should become."""

from __future__ import annotations

from typing import Any, Protocol

import jax


class Goal(Protocol):
    """Maps states to goals; pass your own object to `goalward.make` to ask for something else."""

    name: str
    dim: int  # G

    def achieved(self, state: Any) -> jax.Array:
        """Returns [N, G] float32, the goal that a state amounts to, for each agent."""
        ...

    def target(self, state: Any) -> jax.Array:
        """Returns [N, G] float32, the goal to reach in this episode; constant until the next reset."""
        ...
