"""Environments whose Python code runs once, however many programs their episodes are part of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from goalward.envs.base import GoalEnv, TimeStep

try:
    from jax.interpreters.partial_eval import dce_jaxpr
except ImportError:  # it is none of what JAX promises to keep
    dce_jaxpr = None  # type: ignore[assignment]


class TracedOnce:
    """An environment that is traced when it is first used, and must not change after; all else is read from it.

    A run has three programs or more: one makes the first episodes, one trains, and others evaluate. A simulator's step
    may take more than a second to trace, and is the same in all of them. What is traced is put into each program less
    what it computes in vain, and not as a function to be called, so that programs compute the same as without it.
    """

    def __init__(self, env: GoalEnv) -> None:
        self._env: GoalEnv = env._env if isinstance(env, TracedOnce) else env  # traced anew
        self.spec = env.spec
        self._reset = _traced_once(self._env.reset)
        self._step = _traced_once(self._env.step)

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        """Returns what the environment's own does."""
        return self._reset(key)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, TimeStep]:
        """Returns what the environment's own does."""
        return self._step(key, state, action)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles the environment alone, since compiled functions cannot be."""
        return TracedOnce, (self._env,)


def _traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that runs `function` once for arguments of the same shapes, and keeps what its results need.

    Simulators compute a lot that no observation and no later step asks for. XLA would leave it out too, but only after
    Python has batched all of it over environments and over seeds and has lowered it, program by program.
    """

    def needed(*args: Any) -> Any:
        # A new function each time: JAX remembers the trace of a function, and the environment may have changed since.
        traced, shapes = jax.make_jaxpr(functools.partial(function), return_shape=True)(*args)
        jaxpr = traced.jaxpr
        if dce_jaxpr is not None:
            jaxpr, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)  # effects stay, such as prints
        results = jaxpr_as_fun(traced.replace(jaxpr=jaxpr))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return jax.jit(needed, inline=True)
