"""The environment contract as checks; each failure is a sentence: the method, the expectation, what was found."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from goalward.envs.base import (
    LARGEST_COUNT,
    Box,
    Discrete,
    EnvSpec,
    Episode,
    GoalEnv,
    TimeStep,
    advance_episode,
    can_render,
    is_over,
    start_episode,
)
from goalward.envs.uniform import uniform_policy
from goalward.errors import UserError, brief

_NUM_EPISODES = 8
_MAX_STEPS_TRIED = 2_000  # of an episode; the end of longer ones is not looked for

# Names that the results of a run give to numbers of their own.
_TAKEN_NAMES = {"win_rate", "return", "length", "episodes", "step_count", "elapsed_time"}


def check_env(env: GoalEnv) -> None:
    """Raises `UserError` with every violation of the contract that was found.

    >>> import goalward as gw
    >>> gw.check_env(gw.make("toy/maze"))
    """
    if isinstance(env, type):
        raise UserError(f"Expected an environment; found the class {env.__name__}. Pass an object of it.")
    problems = find_problems(env)
    if problems:
        try:
            name = env.spec.name
        except Exception:  # the spec may be what is wrong
            name = type(env).__name__
        raise UserError(f"The environment '{name}' violates the contract. " + " ".join(problems))


def find_problems(env: GoalEnv) -> list[str]:
    """Returns a sentence for each violation. Later stages build on earlier ones: the first that fails is the last."""
    for stage in (_spec_problems, _call_problems, _shape_problems, _episode_problems):
        try:
            problems = list(stage(env))
        except (Exception, SystemExit) as error:  # whatever user code raises when it is called once more
            problems = [f"The environment must behave alike in every call; one raised {brief(error)}."]
        if problems:
            return problems
    return []


def _spec_problems(env: Any) -> Iterator[str]:
    spec = getattr(env, "spec", None)
    if not isinstance(spec, EnvSpec):
        yield f"`spec` must be a goalward.EnvSpec; found {type(spec).__name__}."
        return
    for name in ("obs_dim", "goal_dim", "max_steps", "num_agents"):
        value = getattr(spec, name)
        if type(value) is not int or not 1 <= value <= LARGEST_COUNT:
            yield f"`spec.{name}` must be a whole number of at least 1 and at most {LARGEST_COUNT}; found {value!r}."
    for name in ("name", "goal_name", "reward_name"):
        if not isinstance(getattr(spec, name), str):
            yield f"`spec.{name}` must be a word; found {getattr(spec, name)!r}."
    yield from _space_problems(spec.action_space)
    for name in ("reset", "step"):
        if not callable(getattr(env, name, None)):
            yield f"The environment must have a method `{name}`; found none."


def _space_problems(space: Any) -> Iterator[str]:
    if isinstance(space, Discrete):
        if type(space.num_actions) is not int or not 2 <= space.num_actions <= LARGEST_COUNT:
            yield f"`spec.action_space` must offer a whole number of actions, at least 2; found {space.num_actions!r}."
    elif isinstance(space, Box):
        paired = (
            isinstance(space.low, tuple) and isinstance(space.high, tuple) and len(space.low) == len(space.high) > 0
        )
        bounds = list(zip(space.low, space.high, strict=True)) if paired else []
        numbers = all(isinstance(bound, float) for pair in bounds for bound in pair)
        if not paired:
            yield (
                "`spec.action_space` must have as many low as high bounds, at least one; "
                f"found low {space.low} and high {space.high}."
            )
        elif not numbers or not all(np.isfinite(pair).all() and pair[0] < pair[1] for pair in bounds):
            yield f"`spec.action_space` must have finite bounds, each low below its high; found {bounds}."
    else:
        yield f"`spec.action_space` must be goalward.Discrete or goalward.Box; found {type(space).__name__}."


def _call_problems(env: GoalEnv) -> Iterator[str]:
    """Both methods run under jit, and return a state and a time step."""
    key = jax.random.key(0)
    try:
        reset_program, result = _trace(env.reset, key)
    except (Exception, SystemExit) as error:  # whatever a user's method raises
        yield f"`reset(key)` must run under jax.jit; it raised {brief(error)}."
        return
    if not _is_state_and_step(result):
        yield f"`reset(key)` must return (state, goalward.TimeStep); found {_kind(result)}."
        return
    state, first = result
    action = _some_action(env.spec)
    try:
        step_program, result = _trace(env.step, key, state, action)
    except (Exception, SystemExit) as error:
        yield f"`step(key, state, action)` must run under jax.jit; it raised {brief(error)}."
        return
    if not _is_state_and_step(result):
        yield f"`step(key, state, action)` must return (state, goalward.TimeStep); found {_kind(result)}."
        return
    if not _is_same_program(reset_program, _trace(env.reset, key)[0]):
        yield "`reset` must be a function of its key alone; two calls with one key gave different results."
    if not _is_same_program(step_program, _trace(env.step, key, state, action)[0]):
        yield "`step` must be a function of its arguments alone; two calls with the same ones gave different results."
    next_state, after = result
    if _layout(next_state) != _layout(state):
        yield (
            "`step` must return a state of the structure, shapes and types that `reset` returns; "
            f"found {_difference(next_state, state)}."
        )
    if _layout(after) != _layout(first):
        yield (
            "`step` and `reset` must fill in the same fields of the TimeStep with the same shapes and types; "
            f"found {_difference(after, first)}."
        )


def _shape_problems(env: GoalEnv) -> Iterator[str]:
    spec = env.spec
    agents, actions = spec.num_agents, spec.action_space.size
    _, step = jax.eval_shape(env.reset, jax.random.key(0))  # `step` fills in the same fields, as was checked before
    expected: dict[str, tuple[tuple[int, ...], Any]] = {
        "obs": ((agents, spec.obs_dim), jnp.float32),
        "achieved": ((agents, spec.goal_dim), jnp.float32),
        "goal": ((agents, spec.goal_dim), jnp.float32),
        "terminated": ((), jnp.bool_),
        "success": ((agents,) if np.ndim(step.success) else (), jnp.bool_),
        "truncated": ((), jnp.bool_),
        "reward": ((agents,), jnp.float32),
        "action_mask": ((agents, actions), jnp.bool_),
        "active": ((agents,), jnp.bool_),
    }
    for name, (shape, dtype) in expected.items():
        value = getattr(step, name)
        if value is None and name in TimeStep._field_defaults:
            continue
        wanted = f"`reset` and `step` must return `{name}` as {np.dtype(dtype).name} of shape {shape}"
        if not hasattr(value, "shape"):
            yield f"{wanted}; found {'nothing' if value is None else type(value).__name__}."
        elif value.shape != shape or value.dtype != dtype:
            yield f"{wanted}; found {value.dtype} of shape {value.shape}."
    yield from _metric_problems(step.metrics)


def _metric_problems(metrics: Any) -> Iterator[str]:
    wanted = "`reset` and `step` must return `metrics` as a dictionary of names and scalars, bool or float32"
    if metrics is None:
        return
    if not isinstance(metrics, Mapping):
        yield f"{wanted}; found {type(metrics).__name__}."
        return
    for name, value in metrics.items():
        if not isinstance(name, str) or name in _TAKEN_NAMES:
            yield f"`metrics` must be named by words that results do not use themselves; found {name!r}."
        elif getattr(value, "shape", None) != () or value.dtype not in (jnp.bool_, jnp.float32):
            yield f"{wanted}; found '{name}', {_kind(value)}."


def _episode_problems(env: GoalEnv) -> Iterator[str]:
    """Behaviour over a few whole episodes of random actions."""
    keys = jax.random.split(jax.random.key(0), _NUM_EPISODES)
    start = jax.jit(jax.vmap(lambda k: start_episode(env, k)))
    run = jax.jit(jax.vmap(lambda k, e: _random_episode(env, k, e)))
    try:
        first = start(keys)
        last, trace = run(keys, first)  # trace: [episodes, time, ...]; the step that ends an episode is repeated
        alone = jax.jit(lambda k: start_episode(env, k))(keys[1])
        again = start(keys), run(keys, first)
    except Exception as error:  # whatever a user's callback raises
        yield f"`reset` and `step` must run under jax.jit and jax.vmap; they raised {brief(error)}."
        return
    both = jax.tree.map(lambda a, b: np.concatenate([a[:, None], b], 1), first.step, trace)

    if not _same(jax.tree.leaves(again[0]), jax.tree.leaves(first)):
        yield "`reset` must be a function of its key alone; two calls with one key gave different results."
    if not _same(jax.tree.leaves(again[1]), jax.tree.leaves((last, trace))):
        yield "`step` must be a function of its arguments alone; two calls with the same ones gave different results."
    if not np.allclose(alone.step.obs, first.step.obs[1], atol=1e-5, equal_nan=True):
        yield "`reset` must give the same result under jax.vmap as alone; the observations differ."
    for name in ("obs", "achieved", "goal", "reward"):
        if not np.isfinite(getattr(both, name)).all():
            yield f"`reset` and `step` must return finite numbers in `{name}`; found NaN or infinity."
    for name, values in both.metrics.items():
        if not np.isfinite(values).all():
            yield f"`reset` and `step` must return finite numbers in `metrics`; found NaN or infinity in '{name}'."
    if not np.array_equal(both.goal, np.broadcast_to(both.goal[:, :1], both.goal.shape), equal_nan=True):
        yield "`step` must keep `goal` constant within an episode; found one that changes."
    if isinstance(env.spec.action_space, Discrete) and not both.action_mask.any(-1).all():
        yield "`action_mask` must allow every agent at least one action; found an agent with none."
    ended = both.terminated[:, -1] | both.truncated[:, -1]
    if env.spec.max_steps <= _MAX_STEPS_TRIED and not ended.all():
        yield (
            f"`step` must end an episode within `spec.max_steps` = {env.spec.max_steps} steps by `terminated` or "
            "`truncated`; found one that goes on. Leave `truncated` out to have it done for you."
        )
    yield from _picture_problems(env, [alone.state, jax.tree.map(lambda x: x[0], last.state)])


def _picture_problems(env: GoalEnv, states: list[Any]) -> Iterator[str]:
    """Yields what is wrong with the pictures of a first and a last state."""
    if not can_render(env):
        return
    try:
        images = [np.asarray(env.render(state)) for state in states]  # type: ignore[attr-defined]
    except (Exception, SystemExit) as error:
        yield f"`render(state)` must return a picture as NumPy; it raised {brief(error)}."
        return
    for image in images:
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            yield (
                "`render(state)` must return uint8 of shape (height, width, 3); "
                f"found {image.dtype} of shape {image.shape}."
            )
            return
    if len({image.shape for image in images}) > 1:
        yield f"`render(state)` must return pictures of one size; found {' and '.join(str(x.shape) for x in images)}."


def _random_episode(env: GoalEnv, key: jax.Array, episode: Episode) -> tuple[Episode, TimeStep]:
    """Returns the end of an episode of uniformly random actions and its time steps [T, ...]; it stays once over."""
    policy = uniform_policy(env)

    def one_step(episode: Episode, key: jax.Array) -> tuple[Episode, TimeStep]:
        key_act, key_step = jax.random.split(key)
        step = episode.step
        moved = advance_episode(env, key_step, episode, policy(key_act, step.obs, step.goal, step.action_mask))
        over = is_over(step)
        kept = jax.tree.map(lambda a, b: jnp.where(over, a, b), episode, moved)
        return kept, kept.step

    return jax.lax.scan(one_step, episode, jax.random.split(key, min(env.spec.max_steps, _MAX_STEPS_TRIED)))


def _trace(function: Any, *arguments: Any) -> tuple[Any, Any]:
    """Returns the program of a function and the shapes of its results."""
    # A new function each time, since JAX remembers the trace of one that it has seen.
    program, shapes = jax.make_jaxpr(functools.partial(function), return_shape=True)(*arguments)
    return program, shapes


def _is_same_program(first: Any, second: Any) -> bool:
    """Returns whether two traces agree: a Python-side counter or generator shows up as another constant."""
    return str(first.jaxpr) == str(second.jaxpr) and _same(first.consts, second.consts)


def _some_action(spec: EnvSpec) -> jax.Array:
    if isinstance(spec.action_space, Discrete):
        return jnp.zeros(spec.num_agents, jnp.int32)
    return jnp.zeros((spec.num_agents, spec.action_space.size), jnp.float32)


def _is_state_and_step(result: Any) -> bool:
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], TimeStep)


def _layout(tree: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _difference(found: Any, expected: Any) -> str:
    """Returns the first place where two trees differ."""

    def paths(tree: Any) -> dict[str, str]:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {jax.tree_util.keystr(path) or "the state": f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}

    first, second = paths(found), paths(expected)
    for path in [*second, *first]:
        if first.get(path) != second.get(path):
            return f"{path} as {first.get(path, 'absent')} after step and {second.get(path, 'absent')} after reset"
    return "another type of container"


def _same(first: list[Any], second: list[Any]) -> bool:
    def plain(x: Any) -> Any:
        is_key = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return all(
        np.array_equal(plain(a), plain(b), equal_nan=plain(a).dtype.kind == "f")
        for a, b in zip(first, second, strict=True)
    )


def _kind(value: Any) -> str:
    if isinstance(value, jax.ShapeDtypeStruct):
        return f"{value.dtype} of shape {value.shape}"
    if type(value) is tuple:
        return f"a tuple of {', '.join(type(part).__name__ for part in value)}"
    return type(value).__name__
