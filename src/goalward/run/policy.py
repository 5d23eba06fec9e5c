"""A trained policy that acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from goalward.algos.base import Learner
from goalward.envs.base import EnvSpec


@dataclass(frozen=True)
class Policy:
    """The policy of one seed."""

    learner: Learner
    params: Any
    seed: int

    @property
    def spec(self) -> EnvSpec:
        """The environment that it was trained on."""
        return self.learner.env.spec

    def act(
        self, obs: jax.Array, goal: jax.Array, mask: jax.Array | None = None, key: jax.Array | None = None
    ) -> jax.Array:
        """Returns actions for obs [..., N, D] and goal [..., N, G]: sampled with a key, greedy without one."""
        return self.learner.act(self.params, obs, goal, mask, key)

    def value(self, obs: jax.Array, goal: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Returns V [..., N] of observations and goals, in the units of the method that learned it."""
        return self.learner.value(self.params, obs, goal, mask)
