"""How much of the time of a run goes into its evaluations, by the paper's protocol.

    python benchmarks/evaluation_share.py [TASKS] [--seeds 1 10]

80 evaluations of 2,048 whole episodes in 80 million steps: the time of one evaluation, of the untrained policy, whose
episodes are the longest, over the time from one evaluation to the next. Without compilation.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from timing import call_seconds

import goalward as gw
from goalward.envs.traced import TracedOnce
from goalward.run.config import make_plan
from goalward.run.directory import versions
from goalward.run.program import Program

STEPS, EVALUATIONS, EPISODES = 80_000_000, 80, 2048
SHORT_EPISODES = ["navix/empty-random-16x16", "navix/fourrooms", "smax/3m", "connector/5x5x3a", "connector/10x10x10a"]


def measure(task: str, num_seeds: int) -> dict[str, Any]:
    """Returns one row of the results."""
    plan = make_plan(task=task)
    env = TracedOnce(gw.make(task, **plan.run.env))
    program = Program(plan.algo.bind(env, STEPS // plan.algo.steps_per_iteration()), range(num_seeds))
    states = program.init()
    evaluation = min(call_seconds(lambda: program.evaluate(states.params, 0, EPISODES), repeats=3))
    states, _ = jax.block_until_ready(program.advance(states, jnp.int32(1)))
    began = time.perf_counter()
    jax.block_until_ready(program.advance(states, jnp.int32(4)))
    iteration = (time.perf_counter() - began) / 4
    between = iteration * STEPS / EVALUATIONS / plan.algo.steps_per_iteration()
    return {
        "task": task,
        "seeds": num_seeds,
        "seconds_per_evaluation": round(evaluation, 3),
        "seconds_between": round(between, 3),
        "share": round(evaluation / (evaluation + between), 3),
    }


def main() -> None:
    """Prints a table and writes results/evaluation_share.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=SHORT_EPISODES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--out", type=Path, default=Path("results/evaluation_share.json"))
    options = parser.parse_args()
    rows = []
    for task in options.tasks:
        for num_seeds in options.seeds:
            rows.append(measure(task, num_seeds))
            print(*rows[-1].values(), flush=True)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps({"rows": rows, "versions": versions()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
