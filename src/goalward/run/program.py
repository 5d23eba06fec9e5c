"""The compiled functions of a run: all seeds at once.

Seed s draws everything from `jax.random.key(s)` and nothing else, so it makes the same draws alone or beside others.
The generator is threefry by name: JAX's `rbg` draws other numbers under `vmap` and would break that promise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from goalward.algos.base import Learner
from goalward.envs.base import GoalEnv
from goalward.evaluate.episodes import EpisodeResults, run_episodes

KEY_IMPL = "threefry2x32"
MAX_ITERATIONS_PER_CALL = 64
_TRAIN, _EVALUATE, _ABSOLUTE, _FILM, _FRESH = range(5)  # what a seed's key is folded with, one stream each


class Evaluation(NamedTuple):
    """Means over the episodes of one evaluation, per seed."""

    win_rate: jax.Array  # [S], share of the episodes that were won, or of the agents where each wins for itself
    ret: jax.Array  # [S]
    length: jax.Array  # [S]
    metrics: dict[str, jax.Array]  # name -> [S], what else the environment reports


class Program:
    """Training and evaluation of S seeds, each function compiled once."""

    def __init__(self, env: GoalEnv, learner: Learner, seeds: range) -> None:
        self._env = env
        self._learner = learner
        self.num_seeds = len(seeds)
        self._keys = jax.vmap(lambda s: jax.random.key(s, impl=KEY_IMPL))(
            jnp.arange(seeds.start, seeds.stop, dtype=jnp.uint32)
        )
        self.init = jax.jit(self._init)
        self.advance = jax.jit(self._advance, donate_argnums=0)
        self._evaluate_jit = jax.jit(self._evaluate, static_argnames=("num_episodes", "greedy"))

    def _init(self) -> Any:
        """Returns the learner's state before training, [S, ...]."""
        return self._each_seed(self._learner.init)(self._streams(_TRAIN))

    def _advance(self, states: Any, num_iterations: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """Returns the states after up to 64 iterations and the metrics of each, [64, S], valid up to their number.

        The number is a traced value: calls of any length run one compiled program and give the same bits.
        """
        iterate = self._each_seed(self._learner.iterate)
        shapes = jax.eval_shape(iterate, states)[1]
        empty = jax.tree.map(lambda m: jnp.zeros((MAX_ITERATIONS_PER_CALL, *m.shape), m.dtype), shapes)

        def one(i: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            states, history = carry
            states, metrics = iterate(states)
            return states, jax.tree.map(lambda h, m: h.at[i].set(m), history, metrics)

        result: tuple[Any, dict[str, jax.Array]] = jax.lax.fori_loop(0, num_iterations, one, (states, empty))
        return result

    def evaluate(self, params: Any, index: int, num_episodes: int, *, greedy: bool = False) -> Evaluation:
        """Returns evaluation number `index` of parameters [S, ...]; greedy and sampled share their episodes' starts."""
        keys = jax.vmap(lambda k: jax.random.fold_in(k, index))(self._streams(_EVALUATE))
        result: Evaluation = self._evaluate_jit(params, keys, num_episodes=num_episodes, greedy=greedy)
        return result

    def evaluate_absolute(self, params: Any, num_episodes: int) -> Evaluation:
        """Returns the evaluation of the best parameters, on episodes that did not take part in choosing them."""
        result: Evaluation = self._evaluate_jit(
            params, self._streams(_ABSOLUTE), num_episodes=num_episodes, greedy=False
        )
        return result

    def evaluate_fresh(self, params: Any, num_episodes: int, *, greedy: bool) -> Evaluation:
        """Returns an evaluation on episodes that training never used."""
        result: Evaluation = self._evaluate_jit(params, self._streams(_FRESH), num_episodes=num_episodes, greedy=greedy)
        return result

    def film_key(self) -> jax.Array:
        """Returns the key of the episodes that are shown, from the first seed."""
        return self._streams(_FILM)[0]

    def _evaluate(self, params: Any, keys: jax.Array, *, num_episodes: int, greedy: bool) -> Evaluation:
        def one_seed(params: Any, key: jax.Array) -> EpisodeResults:
            def policy(key: jax.Array, obs: jax.Array, goal: jax.Array, mask: jax.Array) -> jax.Array:
                return self._learner.act(params, obs, goal, mask, None if greedy else key)

            return run_episodes(self._env, policy, key, num_episodes)

        results = jax.tree.map(lambda x: x.mean(-1), self._each_seed(one_seed)(params, keys))
        return Evaluation(results.success, results.ret, results.length, results.metrics)

    def _each_seed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function` over an axis of seeds; a single one goes without it, since batched products are slower.

        Not beside a replay: taking the axis off and putting it back would copy all that is remembered.
        """
        if self.num_seeds > 1 or self._learner.replay_bytes:
            return jax.vmap(function)

        def alone(*args: Any) -> Any:
            result = function(*jax.tree.map(lambda x: x[0], args))
            return jax.tree.map(lambda x: x[None], result)

        return alone

    def _streams(self, use: int) -> jax.Array:
        return jax.vmap(lambda k: jax.random.fold_in(k, use))(self._keys)
