"""What eight seeds cost over one.

    python benchmarks/seeds.py [TASK] [--seeds 8]

Times training iterations of one seed and of several in turn, in one process, and prints the ratio. Seeds are laid over
the devices as in a run: over the cores of a CPU.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import goalward as gw
from goalward.envs.tasks import DEFAULT_TASK
from goalward.envs.traced import TracedOnce
from goalward.run.config import make_plan
from goalward.run.devices import make_mesh
from goalward.run.directory import versions
from goalward.run.prepare import prepare
from goalward.run.program import Program


def seconds_per_iteration(task: str, num_seeds: int, repeats: int = 5, iterations: int = 4) -> float:
    """Returns the best of several timings, without compilation."""
    plan = make_plan(task=task)
    env = TracedOnce(gw.make(task, **plan.run.env))
    learner = plan.algo.bind(env, plan.num_iterations)
    program = Program(learner, range(num_seeds), make_mesh(num_seeds, learner.num_envs))
    states, _ = jax.block_until_ready(program.advance(program.init(), jnp.int32(1)))
    timings = []
    for _ in range(repeats):
        began = time.perf_counter()
        states, _ = jax.block_until_ready(program.advance(states, jnp.int32(iterations)))
        timings.append((time.perf_counter() - began) / iterations)
    return min(timings)


def main() -> None:
    """Prints a line and writes results/seeds.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default=DEFAULT_TASK)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("results/seeds.json"))
    options = parser.parse_args()
    prepare()
    one = seconds_per_iteration(options.task, 1)
    many = seconds_per_iteration(options.task, options.seeds)
    steps = make_plan(task=options.task).algo.steps_per_iteration()
    result = {
        "task": options.task,
        "seeds": options.seeds,
        "cost_ratio": round(many / one, 2),
        "steps_per_second_one": round(steps / one),
        "steps_per_second_all": round(options.seeds * steps / many),
        "versions": versions(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(
        f"{options.task}: {options.seeds} seeds cost {result['cost_ratio']} times one seed "
        f"({result['steps_per_second_all']:,} against {result['steps_per_second_one']:,} environment steps/s)"
    )


if __name__ == "__main__":
    main()
