"""The environment contract: what a task must offer so that every algorithm can train on it.

A `GoalEnv` is pure, can be jitted and vmapped, and never resets itself: the step that ends an episode returns
the state in which it ended, whose achieved goal is often the only place where the target is ever seen. The
rollout starts the next episode. A single agent is the case N = 1.

Axis letters: N agents, D observation, A actions (number of choices, or dimensions of a box), G goal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Discrete:
    """`num_actions` choices; an action is an int32 in [0, num_actions)."""

    num_actions: int

    def __post_init__(self) -> None:
        if isinstance(self.num_actions, np.integer):  # anything else is left for `check_env` to explain
            object.__setattr__(self, "num_actions", int(self.num_actions))

    @property
    def size(self) -> int:
        """The number of choices, A."""
        return self.num_actions

    def __str__(self) -> str:
        return f"{self.num_actions} discrete"


@dataclass(frozen=True)
class Box:
    """A box of real vectors; `low` and `high` give the bounds of each of the A dimensions."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            with contextlib.suppress(TypeError, ValueError, OverflowError):  # what `check_env` will explain
                bounds = np.asarray(getattr(self, name), np.float64)
                if bounds.ndim == 1:
                    object.__setattr__(self, name, tuple(bounds.tolist()))

    @property
    def size(self) -> int:
        """The number of dimensions, A."""
        return len(self.low)

    def __str__(self) -> str:
        return f"{self.size} continuous"


ActionSpace = Discrete | Box

LARGEST_COUNT = 2**31 - 1  # what the counters and indices of arrays can hold

# What an optional field of a TimeStep holds when an environment leaves it out; `complete` replaces it.
_LEFT_OUT: Any = None


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """The static facts of a task; array shapes in a `TimeStep` follow from them."""

    name: str
    obs_dim: int  # D, numbers that one agent observes; the goal is not among them
    goal_dim: int  # G, numbers in a goal
    action_space: ActionSpace
    max_steps: int  # an episode is over after this many steps at the latest
    num_agents: int = 1  # N
    goal_name: str = "default"
    reward_name: str = "none"

    def __post_init__(self) -> None:
        for name in ("obs_dim", "goal_dim", "max_steps", "num_agents"):
            value = getattr(self, name)
            if isinstance(value, np.integer):  # anything else is left for `check_env` to explain
                object.__setattr__(self, name, int(value))


class TimeStep(NamedTuple):
    """What an environment shows after `reset` or `step`, before any reset.

    The fields with a default may be left out: `truncated` then follows from `spec.max_steps`, the reward
    is zero, every action is allowed and every agent is active. `success` and `metrics` are read when an episode ends.
    """

    obs: jax.Array  # [N, D] float32
    achieved: jax.Array  # [N, G] float32, the goal that the current state amounts to
    goal: jax.Array  # [N, G] float32, the goal to reach, constant within an episode
    terminated: jax.Array  # [] bool, the episode ended for a reason inside the task
    success: jax.Array  # [] bool, the task is solved; or [N] bool where every agent wins or loses for itself
    truncated: jax.Array = _LEFT_OUT  # [] bool, the episode was cut off by a time limit
    reward: jax.Array = _LEFT_OUT  # [N] float32, for reward-based methods only
    action_mask: jax.Array = _LEFT_OUT  # [N, A] bool, the actions allowed next (discrete only)
    active: jax.Array = _LEFT_OUT  # [N] bool, whether the agent's next action matters
    metrics: Mapping[str, jax.Array] = _LEFT_OUT  # name -> [] bool or float32, reported beside the win rate


class GoalEnv(Protocol):
    """What an environment must offer; inheriting from this class is welcome and not needed.

    An environment may also have `render(state) -> uint8 [height, width, 3]`, plain NumPy, for one state; a grid with
    one agent also `survey(key) -> Survey` and `survey_names`, from which a report draws what its policy thinks where.
    """

    spec: EnvSpec

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        """Returns the first state of a new episode and its time step."""
        ...

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, TimeStep]:
        """Returns the state after `action` ([N] int32 or [N, A] float32) and its time step."""
        ...


class Survey(NamedTuple):
    """The start of an episode, with the agent put on every cell of the grid in turn, facing F ways."""

    step: TimeStep  # [F, H, W, ...]
    is_free: jax.Array  # [H, W] bool, where the agent can stand
    target: jax.Array  # [2] int32, row and column


class SurveyNames(NamedTuple):
    """What the axes of a survey are called."""

    facings: tuple[str, ...]  # F names
    actions: tuple[str, ...]


class Episode(NamedTuple):
    """An episode under way: the environment's state, its completed time step and the steps taken so far."""

    state: Any
    step: TimeStep
    elapsed: jax.Array  # [] int32


def start_episode(env: GoalEnv, key: jax.Array) -> Episode:
    """Returns a new episode of one environment; it has at least one step, whatever `reset` says about its end."""
    state, step = env.reset(key)
    elapsed = jnp.zeros((), jnp.int32)
    running = jnp.zeros((), bool)
    return Episode(state, complete(env.spec, step, elapsed)._replace(terminated=running, truncated=running), elapsed)


def advance_episode(env: GoalEnv, key: jax.Array, episode: Episode, action: jax.Array) -> Episode:
    """Returns the episode one step later; it is not started anew when it ends."""
    state, step = env.step(key, episode.state, action)
    elapsed = episode.elapsed + 1
    return Episode(state, complete(env.spec, step, elapsed), elapsed)


def complete(spec: EnvSpec, step: TimeStep, elapsed: jax.Array) -> TimeStep:
    """Returns `step` with its optional fields filled in."""
    agents = spec.num_agents
    terminated = jnp.asarray(step.terminated)
    late = (elapsed >= spec.max_steps) & ~terminated
    return step._replace(
        terminated=terminated,
        success=jnp.asarray(step.success),
        truncated=late if step.truncated is _LEFT_OUT else jnp.asarray(step.truncated),
        reward=jnp.zeros(agents) if step.reward is _LEFT_OUT else step.reward,
        action_mask=jnp.ones((agents, spec.action_space.size), bool)
        if step.action_mask is _LEFT_OUT
        else step.action_mask,
        active=jnp.ones(agents, bool) if step.active is _LEFT_OUT else step.active,
        metrics={} if step.metrics is _LEFT_OUT else step.metrics,
    )


def is_over(step: TimeStep) -> jax.Array:
    """Returns [] bool, whether the episode ended with this completed step."""
    return step.terminated | step.truncated


def won_share(step: TimeStep) -> jax.Array:
    """Returns [] float32, how much of the task is solved: all or nothing, or the share of agents that have won."""
    return jnp.mean(step.success, dtype=jnp.float32)


def can_render(env: GoalEnv) -> bool:
    """Returns whether the environment draws its states."""
    return callable(getattr(env, "render", None))


def can_survey(env: GoalEnv) -> bool:
    """Returns whether the environment is a grid on which an agent can be put anywhere."""
    return callable(getattr(env, "survey", None))


def render(env: GoalEnv, state: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns one state drawn as uint8 [height, width, 3]."""
    return np.asarray(env.render(state), np.uint8)  # type: ignore[attr-defined]
