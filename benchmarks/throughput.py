"""How fast training is, where its time goes, and how far that is from the least time it can take.

    python benchmarks/throughput.py smax/3m navix/fourrooms [--seeds 10] [--precision bfloat16] [--algo cppo]
                                    [--preset default] [--repeats 3] [--brief] [--profile DIR] [--out FOLDER]

At the paper's scale and with its networks unless another preset is named, on one device. One task after the other, each
in a process of its own; for each a file FOLDER/TASK-ALGO-SEEDS-PRECISION[-PRESET].json:

- `steps_per_second`: environment steps of all seeds together while training, the median of the repeats; without
  compilation and evaluation. `compile_seconds`: of what a run begins with, side by side as there, nothing being cached:
  XLA tries kernels on a GPU while it compiles, and might choose others for training alone.
- `phases` (CPPO only): seconds of one iteration by phase. Each is a program of its own over all seeds, timed by itself;
  `rest` is what an iteration takes beyond their sum (relabelling, metrics), and negative where compiling all of it
  together gains more than that.
- `evaluation_seconds`: one evaluation with the episodes of the run's settings, of a policy that has hardly learned.
- `peak_bytes`: the most memory in use up to the end of training; what the compiled program asks for where the device
  does not say.
- `floor`, `fraction_of_floor` (CPPO only): see floor.py; an H200's, whatever device this is.
- `kernels` (--profile): the kernels that take most of two iterations; the trace itself stays in DIR.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from floor import floor
from jax.experimental.compilation_cache import compilation_cache
from kernels import busiest_kernels
from programs import Row, identity, in_new_process, make_folder, measure_each, name_of, parser_of, set_up
from tables import throughput
from timing import call_seconds

import goalward as gw
from goalward.algos.cppo import CPPO, CPPOLearner
from goalward.run.directory import versions
from goalward.run.memory import bytes_of_program
from goalward.run.program import Program, compiler_options

ITERATIONS_PER_REPEAT = 4
ITERATIONS_IN_PROFILE = 2


def measure(task: str, options: argparse.Namespace) -> Row:
    """Returns what is written to a task's file."""
    setup = set_up(task, options)
    plan, program = setup.plan, setup.program
    with nothing_cached():
        began = time.perf_counter()
        advance = program.compile(plan.run.eval_episodes)
        compile_seconds = time.perf_counter() - began
    states, timings = seconds_of_iterations(advance, program.init(), options.repeats)
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    seconds = statistics.median(timings)
    speed = plan.run.seeds * plan.algo.steps_per_iteration() / seconds
    result = identity(task, options) | {
        "steps_per_second": round(speed),
        "steps_per_second_of_repeats": [round(speed * seconds / timing) for timing in timings],
        "compile_seconds": round(compile_seconds, 2),
        "iteration_seconds": seconds,
        "peak_bytes": bytes_of_program(advance) if peak is None else peak,
    }
    if options.profile:
        folder = options.profile / name_of(task)
        with jax.profiler.trace(folder):
            states, _ = jax.block_until_ready(advance(states, jnp.int32(ITERATIONS_IN_PROFILE)))
        result["kernels"] = busiest_kernels(folder) | {"iterations": ITERATIONS_IN_PROFILE}
    result |= {"phases": {}, "floor": {}, "fraction_of_floor": None}
    if isinstance(plan.algo, CPPO):
        least = floor(plan.algo, setup.env.spec)
        result |= {"floor": least, "fraction_of_floor": speed / least["floor_steps_per_second"]}
    if not options.brief:
        (evaluation,) = call_seconds(lambda: program.evaluate(states.params, 0, plan.run.eval_episodes), repeats=1)
        result |= {"evaluation_seconds": evaluation, "evaluation_episodes": plan.run.eval_episodes}
    if isinstance(setup.learner, CPPOLearner) and not options.brief:
        phases = seconds_by_phase(program, setup.learner, states, options.repeats)
        result["phases"] = phases | {"rest": seconds - sum(phases.values())}
    return result | {"versions": versions(), "device": jax.devices()[0].device_kind}


def seconds_of_iterations(advance: Any, states: Any, repeats: int) -> tuple[Any, list[float]]:
    """Returns the states after training, and the seconds of one iteration in every repeat; the first is not timed."""
    states, _ = jax.block_until_ready(advance(states, jnp.int32(1)))
    timings = []
    for _ in range(repeats):
        began = time.perf_counter()
        states, _ = jax.block_until_ready(advance(states, jnp.int32(ITERATIONS_PER_REPEAT)))
        timings.append((time.perf_counter() - began) / ITERATIONS_PER_REPEAT)
    return states, timings


def seconds_by_phase(program: Program, learner: CPPOLearner, states: Any, repeats: int) -> dict[str, float]:
    """Returns the seconds that each phase takes of an iteration of all seeds, states [S, ...]."""
    keys = jax.vmap(lambda key: jax.random.fold_in(key, 0))(states.key)

    def inputs(state: Any, key: jax.Array) -> tuple[Any, ...]:
        _, rollout = learner.collect(state, key)
        steps = learner.steps_of(state.params, rollout)
        adv, _ = learner.advantages(state.params.critic, steps, key)
        return steps, learner.relabel(steps, rollout, key), adv

    # Of the new states only what a phase has changed: handing on the environments would copy them.
    def critic(state: Any, pairs: Any, key: jax.Array) -> Any:
        state, metrics = learner.update_encoders(state, pairs, key)
        return state.params.critic, state.critic_opt, metrics

    def policy(state: Any, steps: Any, adv: jax.Array, key: jax.Array) -> Any:
        state, metrics = learner.update_policy(state, steps, adv, key)
        return state.params.policy, state.policy_opt, metrics

    def arguments(steps: Any, pairs: Any, adv: Any) -> list[tuple[Any, ...]]:
        return [(states, keys), (states, pairs, keys), (states.params.critic, steps, keys), (states, steps, adv, keys)]

    lowered = [jax.jit(program.side_by_side(inputs)).lower(states, keys)]
    functions = (learner.collect, critic, learner.advantages, policy)
    for phase, shapes in zip(functions, arguments(*lowered[0].out_info), strict=True):
        lowered.append(jax.jit(program.side_by_side(phase), compiler_options=compiler_options()).lower(*shapes))
    with ThreadPoolExecutor() as beside:  # compiling takes most of the time that measuring phases does
        made, *phases = beside.map(lambda one: one.compile(), lowered)
    epochs = learner.config.num_epochs
    counts = {
        "rollout": 1,
        "critic": epochs,
        "advantages": 1 if learner.config.advantage_order == "before_critic" else epochs,
        "policy": epochs,
    }
    return {
        name: count * statistics.median(call_seconds(functools.partial(phase, *values), repeats))
        for (name, count), phase, values in zip(counts.items(), phases, arguments(*made(states, keys)), strict=True)
    }


@contextmanager
def nothing_cached() -> Iterator[None]:
    """Compiles everything anew, whatever a cache on disk holds."""
    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # whether it is in use is asked only once otherwise
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def said(row: Row) -> str:
    """Returns the speed, and what the profile found if there was one."""
    kernels = row.get("kernels", {}).get("top", [])
    lines = [f"  {kernel['share']:>6.1%} {kernel['count']:>8,} x {kernel['name'][:90]}" for kernel in kernels]
    return "\n".join([f"{row['steps_per_second']:,} steps/s", *lines])


def main(arguments: list[str] | None = None) -> None:
    """Reads what to measure, and measures it."""
    parser = parser_of(__doc__, out="results/throughput")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--brief", action="store_true", help="neither phases nor an evaluation")
    parser.add_argument("--profile", type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"expected --repeats to be at least 1; found {options.repeats}")
    try:
        if options.profile:
            make_folder(options.profile)
        print(throughput(measure_each(options, functools.partial(in_new_process, measure), said)))
    except gw.UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
