"""The four built-in tasks at their full budgets, each with its negative control: about ten minutes on two cores."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "builtin_tasks.py"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["toy/rooms", "toy/routing", "toy/maze", "toy/swarm"])
def test_task_is_learned_and_its_control_is_not(task, tmp_path):
    out = tmp_path / "result.json"
    subprocess.run([sys.executable, BENCHMARK, task, "--out", out], check=True)
    (row,) = json.loads(out.read_text())["rows"]
    assert sum(row["cppo"]["sampled"]) / 4 >= 0.80
    assert sum(row["control"]["sampled"]) / 4 <= row["uniform"] + 0.05
    assert row["uniform"] <= 0.30
