"""What every algorithm offers, and the table of their names.

A frozen dataclass named after the algorithm holds its settings; `bind` turns it into a `Learner` for one environment.
A learner is pure: `init` and `iterate` carry everything in a state, so seeds are a `vmap` and iterations a loop, both
applied outside.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

import jax
import optax

from goalward.algos.settings import check_fields
from goalward.envs.base import EnvSpec, GoalEnv
from goalward.errors import unknown_name

Metrics = dict[str, jax.Array]

# Name -> "module:class"; imported on first use, so that listing the names costs nothing.
ALGORITHMS: dict[str, str] = {"cppo": "goalward.algos.cppo:CPPO"}


class Learner(Protocol):
    """An algorithm bound to one environment."""

    env: GoalEnv
    steps_per_iteration: int  # environment steps that one call of `iterate` takes

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
        return False

    def with_modules_of(self, other: Any) -> Self:
        """Returns these settings with the modules of others."""
        del other
        return self

    def resolve(self, spec: EnvSpec) -> Self:
        """Returns the settings with every value that depends on the environment filled in."""
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
    module, _, attribute = ALGORITHMS[name].partition(":")
    found: type[AlgorithmConfig] = getattr(importlib.import_module(module), attribute)
    return found


Schedule = Literal["cosine", "linear", "constant"]


def make_optimizer(
    *, learning_rate: float, end: float, schedule: Schedule, num_steps: int, max_grad_norm: float, epsilon: float
) -> optax.GradientTransformation:
    """Returns Adam behind global-norm clipping, its rate falling from `learning_rate` to `end`."""
    rate: Any = learning_rate
    if schedule == "cosine":
        rate = optax.cosine_decay_schedule(learning_rate, num_steps, alpha=end / learning_rate)
    elif schedule == "linear":
        rate = optax.linear_schedule(learning_rate, end, num_steps)
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(rate, eps=epsilon))
