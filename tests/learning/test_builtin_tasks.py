"""The built-in tasks at their full budgets, by every method, each with its negative control: about an hour."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import goalward as gw
from goalward.algos.base import ALGORITHMS

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "builtin_tasks.py"
TASKS = ["toy/rooms", "toy/routing", "toy/maze", "toy/swarm"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "task"),
    [(algo, task) for algo, method in ALGORITHMS.items() for task in TASKS if method.fits(gw.make(task).spec)],
)
def test_task_is_learned_and_its_control_is_not(algo, task, tmp_path):
    out = tmp_path / "result.json"
    optimised = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # the tests' own are slow
    command = [sys.executable, BENCHMARK, task, "--algos", algo, "--out", out]
    subprocess.run(command, env=optimised, check=False)  # its code is the sum
    (row,) = json.loads(out.read_text())["rows"]
    assert sum(row["trained"]["sampled"]) / 4 >= 0.80
    assert sum(row["control"]["sampled"]) / 4 <= row["uniform"] + 0.05
    assert row["uniform"] <= 0.30
