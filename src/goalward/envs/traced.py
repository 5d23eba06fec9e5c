"""Environments whose Python code runs once, however many programs their episodes are part of."""

from __future__ import annotations

import functools
from typing import Any

import jax

from goalward.envs.base import GoalEnv


class TracedOnce:
    """An environment that is traced once, as it is when this is made; other attributes are read from it.

    A run has three programs or more: one makes the first episodes, one trains, and others evaluate. A simulator's step
    may take more than a second to trace, and is the same in all of them. What is traced is put into each program as it
    is, and not as a function to be called, so that programs are the same as without it.
    """

    def __init__(self, env: GoalEnv) -> None:
        self._env = env
        self.spec = env.spec
        # New functions each time: JAX remembers the trace of a function, and the environment may have changed since.
        self.reset = jax.jit(functools.partial(env.reset), inline=True)
        self.step = jax.jit(functools.partial(env.step), inline=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles the environment alone, since compiled functions cannot be."""
        return TracedOnce, (self._env,)
