"""Environments put together from three parts: dynamics, a goal and a reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from goalward.envs.base import LARGEST_COUNT, ActionSpace, EnvSpec, TimeStep
from goalward.errors import UserError
from goalward.goals.base import Goal
from goalward.rewards.base import Reward

GoalFactory = Callable[[Any], Goal]
RewardFactory = Callable[[Any], Reward]


class ComposedEnv:
    """An environment whose goal and reward are objects of their own.

    A subclass first sets whatever its goals and rewards read, then calls this constructor, which builds both.
    """

    def __init__(
        self,
        *,
        name: str,
        obs_dim: int,
        action_space: ActionSpace,
        max_steps: int,
        num_agents: int = 1,
        goal: GoalFactory,
        reward: RewardFactory,
    ) -> None:
        require_whole(name, 1, max_steps=max_steps)
        self.goal = goal(self)
        self.reward = reward(self)
        self.spec = EnvSpec(
            name=name,
            obs_dim=obs_dim,
            goal_dim=self.goal.dim,
            action_space=action_space,
            max_steps=max_steps,
            num_agents=num_agents,
            goal_name=self.goal.name,
            reward_name=self.reward.name,
        )

    def show(
        self,
        state: Any,
        *,
        obs: jax.Array,
        reward: jax.Array,
        terminated: jax.Array,
        success: jax.Array,
        **optional: Any,
    ) -> TimeStep:
        """Returns the time step that shows `state`, with what its goal makes of it and the `optional` fields given."""
        return TimeStep(
            obs=obs,
            achieved=self.goal.achieved(state),
            goal=self.goal.target(state),
            terminated=terminated,
            success=success,
            reward=reward,
            **optional,
        )


def require_whole(task: str, low: int, high: int = LARGEST_COUNT, **values: Any) -> None:
    """Raises unless every value is a whole number from `low` to `high`, by default what arrays can count."""
    for name, value in values.items():
        if type(value) is float and value.is_integer():
            raise UserError(f"{name} of {task} must be written as a whole number, such as {low}; found {value!r}.")
        if type(value) is not int or value < low:
            raise UserError(f"{name} of {task} must be a whole number of at least {low}; found {value!r}.")
        if value > high:
            raise UserError(f"{name} of {task} must be at most {high}; found {value}.")


def require_number(task: str, low: float, high: float, **values: Any) -> None:
    """Raises unless every value is a number from `low` to `high`."""
    for name, value in values.items():
        if type(value) not in (int, float) or not low <= value <= high:
            raise UserError(f"{name} of {task} must be a number from {low:g} to {high:g}; found {value!r}.")
