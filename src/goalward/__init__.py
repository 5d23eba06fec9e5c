"""Trains agents to reach goals without a reward function.

>>> import goalward as gw
>>> gw.make("toy/maze").spec.action_space
Box(low=(-1.0, -1.0), high=(1.0, 1.0))

`goalward.train` trains, `goalward.load` brings a trained policy back; the README shows both.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from goalward.algos.cdqn import CDQN
    from goalward.algos.cppo import CPPO
    from goalward.algos.csac import CSAC, ICSAC
    from goalward.algos.ppo import PPO
    from goalward.envs.base import Box, Discrete, EnvSpec, GoalEnv, TimeStep
    from goalward.envs.check import check_env
    from goalward.envs.registry import make
    from goalward.errors import GoalwardError, UserError
    from goalward.nets.mlp import ActorCritic, Networks
    from goalward.run.load import load
    from goalward.run.member import Run
    from goalward.run.train import resume, train

__version__ = "0.1.0"

# Public names are imported on first use, so that `goalward --help` does not wait for jax.
_HOMES = {
    "CDQN": "algos.cdqn",
    "CPPO": "algos.cppo",
    "CSAC": "algos.csac",
    "ICSAC": "algos.csac",
    "PPO": "algos.ppo",
    "Box": "envs.base",
    "Discrete": "envs.base",
    "EnvSpec": "envs.base",
    "GoalEnv": "envs.base",
    "TimeStep": "envs.base",
    "check_env": "envs.check",
    "make": "envs.registry",
    "GoalwardError": "errors",
    "UserError": "errors",
    "ActorCritic": "nets.mlp",
    "Networks": "nets.mlp",
    "load": "run.load",
    "Run": "run.member",
    "resume": "run.train",
    "train": "run.train",
}

__all__ = [
    "CDQN",
    "CPPO",
    "CSAC",
    "ICSAC",
    "PPO",
    "ActorCritic",
    "Box",
    "Discrete",
    "EnvSpec",
    "GoalEnv",
    "GoalwardError",
    "Networks",
    "Run",
    "TimeStep",
    "UserError",
    "check_env",
    "load",
    "make",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'goalward' has no attribute '{name}'")
    return getattr(importlib.import_module(f"goalward.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
