"""Whether every method learns the built-in tasks that suit it, and only from what it is meant to learn from.

    python benchmarks/builtin_tasks.py [TASK ...] [--algos cppo ppo ...] [--seeds 4]

Trains every built-in task with its tuned preset, then once more as a negative control: the contrastive methods with
positives drawn from other episodes, PPO with a reward of zero and four times the seeds. Prints a table, writes
results/builtin_tasks.json and exits with 1 if a task stays below 0.80 or a control exceeds the uniform policy by more
than 0.05.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from tables import learned

import goalward as gw
from goalward.algos.base import ALGORITHMS
from goalward.envs.tasks import TASKS
from goalward.envs.uniform import uniform_policy
from goalward.evaluate.episodes import run_episodes
from goalward.run.directory import versions
from goalward.run.prepare import prepare

LEARNED = 0.80
CONTROL_MARGIN = 0.05
CONTROLS = {algo: {"reward_scale": 0.0} if algo == "ppo" else {"positives": "shuffled"} for algo in ALGORITHMS}
# Without any signal PPO's policy drifts: on toy/rooms single seeds end anywhere from 0.07 to 0.39, so four are too few.
CONTROLS_PER_SEED = {algo: 4 if algo == "ppo" else 1 for algo in ALGORITHMS}
UNIFORM_EPISODES = 8192


@functools.cache
def uniform_win_rate(task: str) -> float:
    """Returns the win rate of uniformly random actions."""
    env = gw.make(task)
    run = jax.jit(lambda key: run_episodes(env, uniform_policy(env), key, UNIFORM_EPISODES))
    return float(run(jax.random.key(0)).success.mean())


def measure(task: str, algo: str, seeds: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the outcome of one training run."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = gw.train(
            task,
            algo,
            seeds=seeds,
            out=Path(folder) / "run",
            settings={"render_episodes": 0, "absolute_factor": 0, **settings},
        )
        seconds = time.perf_counter() - began
    return {
        "sampled": [row["sampled"] for row in run.final],
        "greedy": [row["greedy"] for row in run.final],
        "steps": run.plan.total_steps,
        "episodes": run.plan.run.eval_episodes,
        "seconds": round(seconds, 1),
    }


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[name for name in TASKS if name.startswith("toy/")])
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("results/builtin_tasks.json"))
    options = parser.parse_args()

    os.environ["GOALWARD_CACHE"] = "off"  # times are of machines that see a task for the first time
    prepare()  # before the uniform policy plays: a CPU is divided among seeds only until JAX has started
    rows = []
    for algo in options.algos:
        control, num_controls = CONTROLS[algo], options.seeds * CONTROLS_PER_SEED[algo]
        for task in options.tasks:
            if not ALGORITHMS[algo].fits(gw.make(task).spec):
                continue
            row = {
                "task": task,
                "algo": algo,
                "uniform": uniform_win_rate(task),
                "trained": measure(task, algo, options.seeds, {}),
                "control": measure(task, algo, num_controls, control),
            }
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"rows": rows, "versions": versions()}, indent=2) + "\n")

    print(learned(rows, with_method=True))
    return int(any(_fails(row) for row in rows))


def _fails(row: dict[str, Any]) -> bool:
    trained, control = (statistics.mean(row[name]["sampled"]) for name in ("trained", "control"))
    return trained < LEARNED or control > row["uniform"] + CONTROL_MARGIN


if __name__ == "__main__":
    sys.exit(main())
