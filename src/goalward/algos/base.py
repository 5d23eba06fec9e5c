"""What every algorithm offers, and the table of what there is.

A frozen dataclass named after the algorithm holds its settings; `bind` turns it into a `Learner` for one environment.
A learner is pure: `init` and `iterate` carry everything in a state, so seeds are a `vmap` and iterations a loop, both
applied outside.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import jax

from goalward.algos.settings import check_fields, traced_fields
from goalward.envs.base import Discrete, EnvSpec, GoalEnv
from goalward.errors import UserError, unknown_name

Metrics = dict[str, jax.Array]


@dataclass(frozen=True)
class Method:
    """One row of the table of algorithms (the paper's Table 1)."""

    settings: str  # "module:class", imported on first use, so that listing the names costs nothing
    actions: tuple[str, ...]  # "discrete", "continuous"
    teams: bool  # whether it trains several agents
    greedy: bool = False  # whether its policy is no distribution, so that asking for samples gives the best actions

    def fits(self, spec: EnvSpec) -> bool:
        """Returns whether the algorithm can be trained on an environment."""
        return kind_of_actions(spec) in self.actions and (self.teams or spec.num_agents == 1)

    def __str__(self) -> str:
        return f"{' or '.join(self.actions)} actions of one agent{' or a team' if self.teams else ''}"


ALGORITHMS: dict[str, Method] = {
    "cppo": Method("goalward.algos.cppo:CPPO", ("discrete", "continuous"), teams=True),
    "ppo": Method("goalward.algos.ppo:PPO", ("discrete", "continuous"), teams=True),
    "csac": Method("goalward.algos.csac:CSAC", ("continuous",), teams=True),
    "icsac": Method("goalward.algos.csac:ICSAC", ("discrete",), teams=True),
    "cdqn": Method("goalward.algos.cdqn:CDQN", ("discrete",), teams=False, greedy=True),
}


def kind_of_actions(spec: EnvSpec) -> str:
    """Returns "discrete" or "continuous"."""
    return "discrete" if isinstance(spec.action_space, Discrete) else "continuous"


class Learner(Protocol):
    """An algorithm bound to one environment."""

    env: GoalEnv
    num_envs: int  # environments that run in parallel, per seed
    steps_per_iteration: int  # environment steps that one call of `iterate` takes
    replay_bytes: int  # memory that the replay of one seed takes; 0 if there is none

    def init(self, key: jax.Array) -> Any:
        """Returns the state before training: its `params`, which are all that `act` reads, and all else it needs."""
        ...

    def iterate(self, state: Any) -> tuple[Any, Metrics]:
        """Returns the state after one iteration, and scalar metrics named `group/name`.

        Among them are `rollout/episodes` and `rollout/wins`, the episodes that ended and how much of them was won.
        """
        ...

    def act(
        self,
        params: Any,
        obs: jax.Array,
        goal: jax.Array,
        mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns actions for obs [..., N, D] and goal [..., N, G]: sampled with a key, greedy without one."""
        ...

    def value(self, params: Any, obs: jax.Array, goal: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Returns V [..., N] of observations and goals, in the method's own units."""
        ...


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Base of the settings of an algorithm: fields are checked when an object is made."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_fields(self)
        self.validate()

    def validate(self) -> None:
        """Raises `UserError` for values that do not go together; single fields are checked by their types."""

    @property
    def has_modules(self) -> bool:
        """Whether networks were passed as modules, which are no part of the saved settings."""
        return getattr(self, "networks", None) is not None

    def with_modules_of(self, other: Any) -> Self:
        """Returns these settings with the modules of others."""
        modules: dict[str, Any] = {"networks": other.networks}
        return dataclasses.replace(self, **modules)

    def traced_values(self, names: Iterable[str]) -> dict[str, float]:
        """Returns settings as the numbers that stand for them in a compiled program."""
        return {name: getattr(self, name) for name in names}

    def with_traced(self, values: Mapping[str, Any]) -> Self:
        """Returns resolved settings with some of them traced, given as `traced_values` has them; nothing is checked."""
        return self._unchecked(values)

    def without_traced(self) -> Self:
        """Returns what configurations must have in common to train in one program, for comparison alone."""
        return self._unchecked(dict.fromkeys(traced_fields(type(self))))

    def _unchecked(self, values: Mapping[str, Any]) -> Self:
        settings = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(settings, name, value)
        return settings

    def check_fit(self, spec: EnvSpec) -> None:
        """Raises `UserError` if the algorithm does not exist for this kind of environment."""
        method = ALGORITHMS[self.name]
        if method.fits(spec):
            return
        agents = "one agent" if spec.num_agents == 1 else f"{spec.num_agents} agents"
        fitting = [name for name, other in ALGORITHMS.items() if other.fits(spec)]
        raise UserError(
            f"{self.name} trains {method}; {spec.name} has {kind_of_actions(spec)} actions of {agents}. "
            f"Methods that fit: {', '.join(fitting)}."
        )

    def resolve(self, spec: EnvSpec) -> Self:
        """Returns the settings with every value that the environment decides filled in; raises if it does not fit."""
        raise NotImplementedError

    def steps_per_iteration(self) -> int:
        """Returns the environment steps of one iteration."""
        raise NotImplementedError

    def gradient_steps_per_iteration(self) -> int:
        """Returns how often an optimiser steps in one iteration."""
        raise NotImplementedError

    def bind(self, env: GoalEnv, num_iterations: int) -> Learner:
        """Returns the learner for `env`; schedules end after `num_iterations`."""
        raise NotImplementedError


def algorithm_class(name: str) -> type[AlgorithmConfig]:
    """Returns the settings class of a named algorithm."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    module, _, attribute = ALGORITHMS[name].settings.partition(":")
    found: type[AlgorithmConfig] = getattr(importlib.import_module(module), attribute)
    return found
