"""The compiled functions of a run, or of several: all seeds at once, and all configurations.

A row is one seed of one configuration, [C * S], configurations first. Where there is one configuration rows are seeds.
Seed s draws everything from `jax.random.key(s)` and nothing else, so it makes the same draws alone or beside others.
The generator is threefry by name: JAX's `rbg` draws other numbers under `vmap` and would break that promise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from goalward.algos.base import AlgorithmConfig, Learner
from goalward.algos.settings import traced_fields
from goalward.backend import is_gpu
from goalward.envs.base import GoalEnv
from goalward.evaluate.episodes import EpisodeResults, run_episodes
from goalward.garbage import without_looking_for_garbage
from goalward.shards import ENVS, SEEDS

KEY_IMPL = "threefry2x32"
MAX_ITERATIONS_PER_CALL = 64
# What a GPU runs as graphs. By default loops and conditions are not among it, and the host starts every turn of theirs.
# Names as jaxlib 0.11.2 has them, the one that was tried on a GPU.
_GPU_GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL"
_TRAIN, _EVALUATE, _ABSOLUTE, _FILM, _FRESH = range(5)  # what a seed's key is folded with, one stream each


class Evaluation(NamedTuple):
    """Means over the episodes of one evaluation, per row."""

    win_rate: jax.Array  # [R], share of the episodes that were won, or of the agents where each wins for itself
    ret: jax.Array  # [R]
    length: jax.Array  # [R]
    metrics: dict[str, jax.Array]  # name -> [R], what else the environment reports


Values = dict[str, Any]  # setting -> number, or numbers of several configurations


class Configurations(NamedTuple):
    """Settings that train side by side because they differ in traced values alone."""

    num: int  # C
    values: Values  # setting -> [C], those that differ
    bind: Callable[[Values], Learner]  # the values of one configuration -> its learner


def configurations_of(configs: Sequence[AlgorithmConfig], env: GoalEnv, num_iterations: int) -> Configurations:
    """Returns resolved settings as configurations of one program."""
    first = configs[0]
    names = [name for name in sorted(traced_fields(type(first))) if len({getattr(c, name) for c in configs}) > 1]
    rows = [config.traced_values(names) for config in configs]
    values = {name: np.array([row[name] for row in rows], np.float32) for name in names}
    return Configurations(len(configs), values, lambda one: first.with_traced(one).bind(env, num_iterations))


def compiler_options() -> dict[str, str] | None:
    """Returns what XLA is told of programs that train and evaluate on the default device."""
    return {"xla_gpu_enable_command_buffer": _GPU_GRAPHS} if is_gpu() else None


class Program:
    """Training and evaluation of S seeds, of one learner or of each configuration; every function is compiled once.

    On a mesh its devices share the rows: what is [R, ...] is split along them, while metrics and evaluations are whole
    on every device.
    """

    def __init__(
        self,
        learner: Learner,
        seeds: range,
        mesh: Mesh | None = None,
        configurations: Configurations | None = None,
    ) -> None:
        configurations = configurations or Configurations(1, {}, lambda _: learner)
        self.learner = learner  # the first configuration's
        self.mesh = mesh
        self.num_rows = configurations.num * len(seeds)
        self._seeds = seeds
        self._bind = configurations.bind
        self._values = {name: np.repeat(x, len(seeds)) for name, x in configurations.values.items()}  # name -> [R]
        self._split = None if mesh is None else NamedSharding(mesh, PartitionSpec(SEEDS))
        whole = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        options = compiler_options()
        self._init_jit = jax.jit(self._init, out_shardings=self._split)
        self.advance = jax.jit(
            self._advance, donate_argnums=0, out_shardings=(self._split, whole), compiler_options=options
        )
        self._evaluate_jit = jax.jit(
            self._evaluate,
            static_argnames=("num_episodes", "greedy"),
            out_shardings=whole,
            compiler_options=options,
        )
        self._keys_jit = jax.jit(self._streams, static_argnums=0, out_shardings=self._split)

    @without_looking_for_garbage()
    def shapes(self) -> Any:
        """Returns the shapes of the learner's state, [R, ...]; what is traced for them `init` need not trace again."""
        shapes = jax.eval_shape(self._init_jit, self._key_shapes())

        def placed(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._split, weak_type=x.weak_type)

        return jax.tree.map(placed, shapes)

    def _key_shapes(self) -> jax.ShapeDtypeStruct:
        key = jax.eval_shape(lambda: jax.random.key(0, impl=KEY_IMPL))
        return jax.ShapeDtypeStruct((self.num_rows,), key.dtype, sharding=self._split)

    @without_looking_for_garbage()
    def compile(self, num_episodes: int, *, is_new: bool = True) -> Any:
        """Returns `advance`, compiled; what a run begins with besides is compiled too, and kept by JAX for its call.

        That is an evaluation, and `init` where the run is new. While other threads compile one program, or load it from
        the cache, this one lowers the next: here contexts of JAX hold, such as a default device.
        """
        state, keys = self.shapes(), self._key_shapes()

        def lowered() -> Iterator[Any]:
            if is_new:
                yield self._init_jit.lower(keys)
            yield self.advance.lower(state, np.int32(1))
            yield self._evaluate_jit.lower(state.params, keys, num_episodes=num_episodes, greedy=False)

        with ThreadPoolExecutor() as beside:
            *_, advance, _ = beside.map(lambda one: one.compile(), lowered())
        return advance

    @without_looking_for_garbage()
    def init(self) -> Any:
        """Returns the learner's state before training, [R, ...]."""
        return self._init_jit(self._keys_jit(_TRAIN))

    def _init(self, keys: jax.Array) -> Any:
        # Keys are arguments: XLA would compute what follows from constants, all first episodes, while it compiles.
        return self._each_seed(lambda learner, key: learner.init(key))(keys)

    def place(self, tree: Any) -> Any:
        """Returns arrays [R, ...] of the host on the devices."""
        split = self._split
        if split is None:
            return jax.tree.map(jnp.asarray, tree)
        return jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, split, lambda rows: x[rows]), tree)

    def spread(self, tree: Any) -> Any:
        """Returns arrays [R, ...], of the host or of one device, on all of the program's; random keys included."""
        return jax.device_put(tree, self._split)

    def _advance(self, states: Any, num_iterations: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """Returns the states after up to 64 iterations and the metrics of each, [64, R], valid up to their number.

        The number is a traced value: calls of any length run one compiled program and give the same bits.
        """
        # Compiled as a function of its own, so that it is traced once and not again for the shapes.
        iterate = jax.jit(self._each_seed(lambda learner, state: learner.iterate(state)))
        shapes = jax.eval_shape(iterate, states)[1]
        empty = jax.tree.map(lambda m: jnp.zeros((MAX_ITERATIONS_PER_CALL, *m.shape), m.dtype), shapes)

        def one(i: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            states, history = carry
            states, metrics = iterate(states)
            return states, jax.tree.map(lambda h, m: h.at[i].set(m), history, metrics)

        result: tuple[Any, dict[str, jax.Array]] = jax.lax.fori_loop(0, num_iterations, one, (states, empty))
        return result

    def evaluate(self, params: Any, index: int, num_episodes: int, *, greedy: bool = False) -> Evaluation:
        """Returns evaluation number `index` of parameters [R, ...]; greedy and sampled share their episodes' starts."""
        return self._measure(params, self._keys_jit(_EVALUATE, np.int32(index)), num_episodes, greedy)

    def evaluate_absolute(self, params: Any, num_episodes: int) -> Evaluation:
        """Returns the evaluation of the best parameters, on episodes that did not take part in choosing them."""
        return self._measure(params, self._keys_jit(_ABSOLUTE), num_episodes, False)

    def evaluate_fresh(self, params: Any, num_episodes: int, *, greedy: bool) -> Evaluation:
        """Returns an evaluation on episodes that training never used."""
        return self._measure(params, self._keys_jit(_FRESH), num_episodes, greedy)

    @without_looking_for_garbage()
    def _measure(self, params: Any, keys: jax.Array, num_episodes: int, greedy: bool) -> Evaluation:
        result: Evaluation = self._evaluate_jit(params, keys, num_episodes=num_episodes, greedy=greedy)
        return result

    def film_key(self) -> jax.Array:
        """Returns the key of the episodes that are shown, from the first seed."""
        return jax.random.fold_in(jax.random.key(np.uint32(self._seeds.start), impl=KEY_IMPL), _FILM)

    def _evaluate(self, params: Any, keys: jax.Array, *, num_episodes: int, greedy: bool) -> Evaluation:
        def one_seed(learner: Learner, params: Any, key: jax.Array) -> EpisodeResults:
            def policy(key: jax.Array, obs: jax.Array, goal: jax.Array, mask: jax.Array) -> jax.Array:
                return learner.act(params, obs, goal, mask, None if greedy else key)

            return run_episodes(learner.env, policy, key, num_episodes)

        results = jax.tree.map(lambda x: x.mean(-1), self._each_seed(one_seed)(params, keys))
        return Evaluation(results.success, results.ret, results.length, results.metrics)

    def _each_seed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function(learner, *args)` as a function of args with an axis of rows, each with its own learner.

        On a mesh each device maps over rows of its own and never hears of the others, so that none waits for another.
        """

        def one_row(values: Values, *args: Any) -> Any:
            return function(self._bind(values), *args)

        if self.mesh is None:
            return functools.partial(self.side_by_side(one_row), self._values)
        # Environments are split by the compiler, unless there is nothing to split and all is said.
        by_hand = {SEEDS} if self.mesh.shape[ENVS] > 1 else {SEEDS, ENVS}
        split: Callable[..., Any] = jax.shard_map(
            self.side_by_side(one_row, self.num_rows // self.mesh.shape[SEEDS]),
            mesh=self.mesh,
            in_specs=PartitionSpec(SEEDS),
            out_specs=PartitionSpec(SEEDS),
            axis_names=by_hand,
            check_vma=False,
        )
        return functools.partial(split, self._values)

    def side_by_side(self, function: Callable[..., Any], num_rows: int | None = None) -> Callable[..., Any]:
        """Returns `function` over an axis of rows, of all of them unless their number is given.

        A single one goes without it, since batched products are slower. Not beside a replay: taking the axis off and
        putting it back would copy all that is remembered.
        """
        if (num_rows or self.num_rows) > 1 or self.learner.replay_bytes:
            return jax.vmap(function)

        def alone(*args: Any) -> Any:
            result = function(*jax.tree.map(lambda x: x[0], args))
            return jax.tree.map(lambda x: x[None], result)

        return alone

    def _streams(self, use: int, index: jax.Array | None = None) -> jax.Array:
        """Returns a key for each row, [R]; those of one use are told apart by an index."""

        def one_seed(seed: jax.Array) -> jax.Array:
            key = jax.random.fold_in(jax.random.key(seed, impl=KEY_IMPL), use)
            return key if index is None else jax.random.fold_in(key, index)

        seeds = np.arange(self._seeds.start, self._seeds.stop, dtype=np.uint32)
        return jax.vmap(one_seed)(jnp.asarray(np.tile(seeds, self.num_rows // len(seeds))))


class Programs(NamedTuple):
    """What trains all runs at once, and what measures each for itself: one and the same where there is one run."""

    together: Program
    alone: Program  # of a run's own seeds; the best policies of all runs at once would be too many episodes
