"""Run directories as a run writes them, with numbers that the tests choose."""

import json

import numpy as np

from goalward.envs.tasks import TASKS
from goalward.evaluate.records import marl_eval_layout
from goalward.run.config import make_plan


def write_run(
    path, task, algo, win_rate, *, last_step=1000, absolute=None, finished=True, run=None, settings=None, extra=None
):
    """Writes the run of win rates [P, S]; `absolute` has the [S] of the best policies."""
    win_rate = np.asarray(win_rate, float)
    num_evaluations, num_seeds = win_rate.shape
    plan = make_plan(task=task, algo=algo, run={"seeds": num_seeds, **(run or {})}, settings=settings or {})
    steps = np.linspace(0, last_step, num_evaluations)
    records = [
        {
            "evaluation": e,
            "iteration": e,
            "step": int(steps[e]),
            "elapsed": 60.0 * e,
            "episodes": 2048,
            "seed": plan.run.first_seed + s,
            "win_rate": float(win_rate[e, s]),
            "return": float(10 * win_rate[e, s]),
            "length": 20.0,
            **(extra or {}),
        }
        for e in range(num_evaluations)
        for s in range(num_seeds)
    ]
    path.mkdir(parents=True)
    (path / "config.toml").write_text(plan.to_toml())
    versions = {
        "goalward": "0.1.0",
        "packages": {"jax": "0.10.2"},
        "devices": ["NVIDIA H200"],
        "commit": "0123456789ab",
    }
    (path / "versions.json").write_text(json.dumps(versions))
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if finished:
        best = None
        if absolute is not None:
            last = {record["seed"]: record for record in records[-num_seeds:]}
            best = {s: last[s] | {"win_rate": float(value)} for s, value in zip(last, absolute, strict=True)}
        (path / "results.json").write_text(json.dumps(marl_eval_layout(records, best, task=task, algo=algo)))
    return path


def learning_curves(rng, num_evaluations, num_seeds, top):
    """Returns [P, S] of curves that rise to about `top`."""
    rate = rng.uniform(2, 8, num_seeds)
    rise = 1 - np.exp(-rate * np.linspace(0, 1, num_evaluations)[:, None])
    return np.clip(top * rise + rng.normal(0, 0.02, rise.shape), 0, 1)


def write_survey(path):
    """Writes what a policy thinks on a grid of two by two cells."""
    (path / "media").mkdir()
    is_free = [[True, False], [True, True]]
    survey = {"facings": [""], "actions": ["up", "down"], "is_free": is_free, "target": [1, 1]}
    survey |= {"value": [[[-1.0, 0.0], [-2.0, -3.0]]], "action": [[[0, 0], [1, 1]]]}
    (path / "media" / "survey.json").write_text(json.dumps(survey))


def write_benchmark(root):
    """Writes the paper's benchmark: 18 tasks x 3 methods x 10 seeds x 81 evaluations."""
    rng = np.random.default_rng(0)
    baselines = {"navix": "cdqn", "jaxgcrl": "csac", "smax": "icsac", "connector": "icsac", "jaxnav": "csac"}
    for name, task in TASKS.items():
        if task.suite in baselines:
            for algo in ("cppo", baselines[task.suite], "ppo"):
                curves = learning_curves(rng, 81, 10, rng.uniform(0.5, 1.0))
                write_run(root / name / algo, name, algo, curves, last_step=80_000_000)
