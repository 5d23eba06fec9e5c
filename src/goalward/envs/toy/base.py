"""What the built-in tasks share: agents that move to targets of their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from goalward.envs.base import TimeStep
from goalward.envs.composed import ComposedEnv


class TargetTask(ComposedEnv):
    """A task that is solved when every agent has arrived; arrived agents stay where they are.

    A subclass sets its geometry (`extent`, `longest_path`, `path_length`) before it calls the constructor, since the
    goal and the reward are built on it. Its states hold `position`, `target` and `arrived`.
    """

    extent: float  # positions lie in [0, extent]
    longest_path: float  # no shortest path is longer

    def path_length(self, state: Any) -> jax.Array:
        """Returns [N], how far each agent still has to go."""
        raise NotImplementedError

    def view(self, state: Any, *, obs: jax.Array, reward: jax.Array, action_mask: jax.Array | None = None) -> TimeStep:
        """Returns the time step that shows `state`."""
        solved = jnp.all(state.arrived)
        return self.show(
            state,
            obs=obs,
            reward=reward,
            terminated=solved,
            success=solved,
            action_mask=action_mask,
            active=~state.arrived,
        )


def distinct_cells(key: jax.Array, cells: jax.Array, count: int) -> jax.Array:
    """Returns [count, 2], different rows of `cells` [C, 2], every choice equally likely."""
    return cells[jax.random.permutation(key, cells.shape[0])[:count]]
