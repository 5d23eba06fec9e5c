"""How long a new process takes until its first iteration has ended, and what with.

    python benchmarks/starts.py smax/3m navix/fourrooms [--seeds 10] [--precision bfloat16] [--algo cppo]
                                [--preset default] [--out FOLDER]

At the paper's scale and with its networks unless another preset is named, on one device. Every task is started twice,
each time in a process of its own: with an empty compilation cache, and with all that the first start left there. For
each a file FOLDER/TASK-ALGO-SEEDS-PRECISION[-PRESET].json, in which `empty_cache` and `full_cache` are the seconds of
these parts:

- `imports`: until the process has imported goalward and what it is built on;
- `task`: JAX is started, the suite imported, the environment made, and networks and first episodes of all seeds traced,
  to reckon whether they fit into memory;
- `trace`, `lower`: the programs that a run begins with, by Python: for training and evaluation, and in `lower` that for
  the first state too;
- `compile`: what is left of compiling them then, since it begins while Python still traces the next; with a full cache
  they are only loaded;
- `first_state`: to have it made, while the device may still compute it;
- `iterate`: the first iteration;
- `total`: the sum of these;
- `evaluation`, not in the sum: the first evaluation, 2,048 episodes of each seed (those of the preset). A run evaluates
  before it trains.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import monitoring
from programs import Row, identity, measure_each, parser_of, set_up
from tables import starts

import goalward as gw
from goalward.run.directory import versions

PROGRAMS = ("_init", "_advance", "_evaluate")  # as JAX calls those of goalward.run.program


def measure(task: str, options: argparse.Namespace) -> Row:
    """Returns what is written to a task's file."""
    with tempfile.TemporaryDirectory() as cache:
        empty, full = (start(task, options, cache) for _ in range(2))
    same = {name: full[name] for name in ("versions", "device")}
    return identity(task, options) | {"empty_cache": empty["seconds"], "full_cache": full["seconds"]} | same


def start(task: str, options: argparse.Namespace, cache: str) -> dict[str, Any]:
    """Returns what a new process reports of its start."""
    command = [sys.executable, __file__, task]
    for name in ("seeds", "precision", "algo", "preset"):
        command += [f"--{name}", str(getattr(options, name))]
    command += ["--began", repr(time.time())]  # the one clock that two processes share
    variables = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
    answer = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if answer.returncode == 2:
        raise gw.UserError(answer.stderr.strip())
    if answer.returncode:
        raise SystemExit(f"The first iteration of {task} failed:\n{answer.stderr[-3000:]}")
    report: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return report


def first_iteration(task: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the seconds that this process has taken for each part, trained for one iteration and evaluated."""
    times = [options.began, time.time()]
    setup = set_up(task, options)
    program = setup.program
    times.append(time.time())
    num_episodes = setup.plan.run.eval_episodes
    with stages() as compiling:
        advance = program.compile(num_episodes)
    times.append(time.time())
    states = program.init()
    times.append(time.time())
    states, _ = jax.block_until_ready(advance(states, jnp.int32(1)))
    times.append(time.time())
    jax.block_until_ready(program.evaluate(states.params, 0, num_episodes))
    evaluated = time.time()
    imports, task_made, compiled, first_state, iterate = (after - before for before, after in pairwise(times))
    seconds = {"imports": imports, "task": task_made, **compiling, "compile": compiled - sum(compiling.values())}
    seconds |= {"first_state": first_state, "iterate": iterate}
    seconds |= {"total": times[-1] - times[0], "evaluation": evaluated - times[-1]}
    rounded = {part: round(value, 2) for part, value in seconds.items()}
    return {"seconds": rounded, "versions": versions(), "device": jax.devices()[0].device_kind}


@contextmanager
def stages() -> Iterator[dict[str, float]]:
    """Yields the seconds that Python traces and lowers the programs of a run in the context, as JAX tells them."""
    seconds = {"trace": 0.0, "lower": 0.0}
    lowered = set()
    names = {"jaxpr_trace_duration": "trace", "jaxpr_to_mlir_module_duration": "lower"}

    def note(event: str, duration: float, **details: str | int) -> None:
        stage = names.get(event.rpartition("/")[2])
        program = str(details.get("fun_name")).removeprefix("jit(").rstrip(")")
        if stage and program in PROGRAMS:
            seconds[stage] += duration
        if stage == "lower":
            lowered.add(program)

    monitoring.register_event_duration_secs_listener(note)
    try:
        yield seconds
    finally:
        monitoring.unregister_event_duration_listener(note)
    if seconds["trace"] == 0.0 or not lowered.issuperset(PROGRAMS):
        raise SystemExit(f"Expected JAX to tell how long it traces and lowers {', '.join(PROGRAMS)}; it did not.")


def said(row: Row) -> str:
    """Returns the figure that matters most."""
    return f"{row['full_cache']['total']:.1f} s with a full cache"


def main(arguments: list[str] | None = None) -> None:
    """Reads what to start, and starts it."""
    parser = parser_of(__doc__, out="results/starts")
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)  # of a process that is measured
    options = parser.parse_args(arguments)
    try:
        if options.began is None:
            print(starts(measure_each(options, measure, said)))
        else:
            print(json.dumps(first_iteration(options.tasks[0], options)))
    except gw.UserError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
