"""What is loaded when: the package is light, a suite waits until one of its tasks is made."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import goalward
from goalward.envs.tasks import TASKS

HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "numpy", "rich", "PIL"}
SUITES = {"navix", "jaxmarl", "jumanji", "brax", "mujoco"} | {task.package for task in TASKS.values() if task.package}


def modules_after(code, tmp_path):
    """Returns the top-level modules that a fresh interpreter holds after `code`."""
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    return set(json.loads(answer.stdout.splitlines()[-1]))


def test_importing_goalward_loads_no_suite_and_no_jax(tmp_path):
    loaded = modules_after("import goalward", tmp_path)

    assert "goalward" in loaded
    assert not loaded & (HEAVY | SUITES)


def test_making_a_built_in_task_loads_no_suite(tmp_path):
    loaded = modules_after("import goalward as gw\ngw.make('toy/rooms')", tmp_path)

    assert "jax" in loaded
    assert not loaded & SUITES


def test_help_is_quick_and_loads_no_jax(tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "goalward", "--help"]
    began = time.perf_counter()
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    seconds = time.perf_counter() - began
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in answer.stderr.splitlines()}

    assert "train" in answer.stdout
    assert {"argparse", "goalward"} <= imported
    assert not imported & (HEAVY | SUITES)
    assert seconds < 1.5


def test_listing_the_tasks_as_json_loads_no_suite_and_no_jax(tmp_path):
    code = "from goalward.cli import main\ntry: main(['tasks', '--json'])\nexcept SystemExit: print()"

    assert not modules_after(code, tmp_path) & (HEAVY | SUITES)


# What a folder may import of ours, besides itself and files that import nothing of ours: dependencies point one way.
OF_NOBODY = {"backend", "errors", "garbage", "shards"}
LAYERS = {
    "losses": set(),
    "goals": set(),
    "rewards": set(),
    "envs": {"goals", "rewards"},
    "nets": {"envs"},
    "data": {"envs", "losses"},
    "algos": {"data", "nets", "losses", "envs"},
    "evaluate": {"data", "envs"},
}


@pytest.mark.parametrize("folder", LAYERS)
def test_dependencies_point_one_way(folder):
    package = Path(goalward.__file__).parent
    files = sorted((package / folder).rglob("*.py"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    imported = set(re.findall(r"^\s*(?:from|import) goalward\.(\w+)", text, re.MULTILINE))

    assert files
    assert imported <= LAYERS[folder] | {folder, *OF_NOBODY}


@pytest.mark.parametrize("name", sorted(OF_NOBODY))
def test_what_all_may_import_imports_nothing_of_ours(name):
    text = (Path(goalward.__file__).parent / f"{name}.py").read_text(encoding="utf-8")

    assert not re.findall(r"^\s*(?:from|import) goalward", text, re.MULTILINE)


def test_every_task_says_which_extra_brings_its_package():
    assert all((task.package is None) == (task.extra is None) for task in TASKS.values())


def test_the_command_runs_from_any_directory_without_writing_there(tmp_path):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-m", "goalward", "tasks", "--json"], check=True, cwd=tmp_path, env=environment)

    assert not list(tmp_path.iterdir())
