"""The command line: mistakes are explained in a sentence or two, and nothing is written."""

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

import goalward as gw
from goalward.envs.tasks import TASKS

# Under these settings a run that slipped through would at least be over soon.
QUICK = ["--seeds", "1", "--steps", "512", "--set", "num_envs=16", "rollout_length=32", "eval_episodes=8"]
TINY = ["--preset", "quick", "--steps", "512"]


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def sentences(text):
    return [part for part in re.split(r"(?<=[.?!])\s+", text.strip()) if part]


def assert_explained(answer, folder, parts, files=()):
    """The exit code is 2, the explanation short and to the point, and `folder` holds no more than `files`."""
    code, out, err = answer
    assert code == 2
    assert out == ""
    assert err.startswith("goalward: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert 1 <= len(sentences(err)) <= 2
    assert [part for part in parts if part not in err] == []
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)


MISTAKES = {
    "no command": ([], ["command"]),
    "unknown command": (["trian"], ["trian", "train"]),
    "unknown flag": (["train", "--sede", "3"], ["--sede"]),
    "abbreviated flag": (["train", "--first", "3"], ["--first"]),
    "flag without value": (["train", "--seeds"], ["--seeds"]),
    "too many tasks": (["train", "toy/rooms", "toy/maze"], ["toy/maze"]),
    "unknown task": (["train", "toy/room"], ["toy/room", "toy/rooms"]),
    "unknown suite": (["train", "atari/pong"], ["atari/pong", "toy/rooms"]),
    "unknown algorithm": (["train", "--algo", "cpp0"], ["cpp0", "cppo"]),
    "unknown preset": (["train", "--preset", "quik"], ["quik", "quick"]),
    "missing preset file": (["train", "--preset", "mine.toml"], ["mine.toml"]),
    "no tuned preset": (["train", "module:factory", "--preset", "tuned"], ["tuned", "quick"]),
    "unknown goal": (["train", "toy/routing", "--goal", "distanse"], ["distanse", "distance"]),
    "goal of another task": (["train", "toy/rooms", "--goal", "distance"], ["distance", "position"]),
    "empty goal": (["train", "toy/rooms", "--goal", ""], ["goal of toy/rooms: ''", "position"]),
    "empty reward": (["train", "toy/rooms", "--reward", ""], ["reward of toy/rooms: ''", "sparse"]),
    "unknown reward": (["train", "toy/rooms", "--reward", "shaped"], ["shaped", "sparse"]),
    "unknown setting": (["train", "--set", "clipp=0.1"], ["clipp", "clip"]),
    "task after a setting": (["train", "--set", "clip=0.1", "toy/rooms"], ["toy/rooms", "before --set"]),
    "setting without value": (["train", "--set", "clip"], ["key=value", "clip"]),
    "setting without key": (["train", "--set", "=3"], ["key=value"]),
    "unknown argument of the task": (
        ["train", "toy/rooms", *TINY, "--set", "env.width=3"],
        ["width", "size"],
    ),
    "goal as an argument of the task": (["train", "toy/rooms", *TINY, "--set", "env.goal=position"], ["goal"]),
    "task as an argument of the task": (["train", "toy/rooms", *TINY, "--set", "env.task=maze"], ["task"]),
    "size out of range": (["train", "toy/rooms", *TINY, "--set", "env.size=4"], ["size", "4"]),
    "size in words": (["train", "toy/rooms", *TINY, "--set", "env.size=big"], ["size"]),
    "size not finite": (["train", "toy/rooms", *TINY, "--set", "env.size=nan"], ["size"]),
    "half an agent": (["train", "toy/routing", *TINY, "--set", "env.num_agents=2.5"], ["num_agents", "2.5"]),
    "episodes without steps": (["train", "toy/rooms", *TINY, "--set", "env.max_steps=0"], ["max_steps", "0"]),
    "episodes of half a step": (["train", "toy/maze", *TINY, "--set", "env.max_steps=0.5"], ["max_steps", "0.5"]),
    "word for a number": (["train", "--set", "clip=small"], ["clip", "small"]),
    "out of range": (["train", "--set", "clip=1.5"], ["clip", "between 0 and 1", "1.5"]),
    "NaN": (["train", "--set", "clip=nan"], ["clip", "finite", "nan"]),
    "infinity": (["train", "--set", "critic_lr=inf"], ["critic_lr", "finite", "inf"]),
    "batch that does not fit": (["train", "--set", "batch_size=100"], ["batch_size", "100", "nearest"]),
    "thousands of digits": (["train", "--set", f"clip={'1' * 5000}"], ["clip", "a number"]),
    "more than a float holds": (["train", "--set", f"clip=1{'0' * 400}"], ["clip", "float"]),
    "thousands of brackets": (["train", "--set", f"hidden_sizes={'[' * 5000}"], ["hidden_sizes", "list"]),
    "epochs beyond counting": (["train", *TINY, "--set", "num_epochs=1e12"], ["gradient steps", "num_epochs"]),
    "a swarm beyond memory": (
        ["train", "toy/swarm", *TINY, "--set", "env.num_agents=1000000000"],
        ["num_agents", "at most 1000"],
    ),
    "rooms beyond memory": (["train", "toy/rooms", *TINY, "--set", "env.size=100001"], ["size", "at most 51"]),
    "size with an exponent": (["train", "toy/rooms", *TINY, "--set", "env.size=1e1"], ["size", "written", "10.0"]),
    "resume no path": (["train", "--resume", ""], ["--resume", "path"]),
    "no seeds": (["train", "--seeds", "0"], ["seeds", "at least 1", "0"]),
    "negative seeds": (["train", "--seeds", "-2"], ["seeds", "-2"]),
    "half a seed": (["train", "--seeds", "1.5"], ["seeds", "1.5"]),
    "negative first seed": (["train", "--first-seed", "-1"], ["first_seed", "-1"]),
    "seed too large": (["train", "--first-seed", str(2**32)], ["first_seed", "2^32"]),
    "no steps": (["train", "--steps", "0"], ["steps", "0"]),
    "fewer steps than one iteration": (["train", "--steps", "100"], ["steps", "at least one iteration", "100"]),
    "steps not finite": (["train", "--steps", "nan"], ["steps", "whole number", "nan"]),
    "infinitely many steps": (["train", "--steps", "inf"], ["steps", "whole number", "inf"]),
    "steps in words": (["train", "--steps", "many"], ["steps", "whole number", "many"]),
    "no module": (["train", "nosuchmodule:make"], ["nosuchmodule"]),
    "empty module": (["train", ":make"], [":make"]),
    "empty factory": (["train", "json:"], ["json"]),
    "no such factory": (["train", "json:lodas"], ["lodas", "loads"]),
    "resume what is no run": (["train", "--resume", "nowhere"], ["nowhere", "run directory"]),
    "evaluate what is no run": (["evaluate", "nowhere"], ["nowhere", "run directory"]),
    "evaluate nothing": (["evaluate"], ["RUN"]),
    "evaluate no episodes": (["evaluate", "nowhere", "--episodes", "0"], ["episodes", "0"]),
    "evaluate half an episode": (["evaluate", "nowhere", "--episodes", "0.5"], ["episodes", "0.5"]),
    "render what is no run": (["render", "nowhere"], ["nowhere", "run directory"]),
    "render no episodes": (["render", "nowhere", "--episodes", "0"], ["episodes", "0"]),
    "render to another format": (["render", "nowhere", "--out", "film.mp4"], [".gif", "film.mp4"]),
    "check nothing": (["check"], ["module:factory"]),
    "check an unknown task": (["check", "toy/room"], ["toy/room", "toy/rooms"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained_and_nothing_is_written(mistake, goalward, tmp_path):
    arguments, parts = MISTAKES[mistake]
    assert_explained(goalward(*arguments), tmp_path, parts)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--seeds", "3"], "--seeds"),
        (["--first-seed", "0"], "--first-seed"),
        (["--set", "clip=0.1"], "--set"),
        (["--algo", "cppo", "--out", "elsewhere"], "--algo, --out"),
    ],
)
def test_a_run_goes_on_as_it_was_started(goalward, tmp_path, given, named):
    assert_explained(goalward("train", "--resume", "nowhere", *given), tmp_path, ["--resume", named])


def test_a_directory_in_use_is_refused_and_left_alone(goalward, tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.txt").write_text("precious")
    answer = goalward("train", "--out", "used", *TINY)

    assert_explained(answer, tmp_path, ["used", "in use", "Choose another name."], files=["used"])
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["thesis.txt"]


def test_the_goal_of_a_preset_counts(goalward, tmp_path):
    (tmp_path / "mine.toml").write_text("[run]\ngoal = 'distanse'\n")
    answer = goalward("train", "toy/routing", "--preset", "mine.toml", *QUICK)

    assert_explained(answer, tmp_path, ["goal", "distanse", "distance"], files=["mine.toml"])


@pytest.mark.parametrize("out", ["file/run", "/proc/run", "n" * 300])
def test_a_directory_that_cannot_be_written_is_refused(goalward, tmp_path, out):
    (tmp_path / "file").write_text("")
    answer = goalward("train", "--out", out, *TINY)

    assert_explained(answer, tmp_path, [out, "writable"], files=["file"])


def test_a_directory_without_settings_is_no_run(goalward, tmp_path):
    (tmp_path / "empty").mkdir()
    for command in (["evaluate", "empty"], ["render", "empty"], ["train", "--resume", "empty"]):
        assert_explained(goalward(*command), tmp_path, ["empty", "config.toml"], files=["empty"])
    assert not list((tmp_path / "empty").iterdir())


def test_a_file_is_no_run(goalward, tmp_path):
    (tmp_path / "file").write_text("")
    assert_explained(goalward("evaluate", "file"), tmp_path, ["file", "run directory"], files=["file"])


def test_a_run_without_a_checkpoint_cannot_be_evaluated(goalward, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("[run]\ntask = 'toy/rooms'\nalgo = 'cppo'\n")
    for command in ("evaluate", "render"):
        assert_explained(goalward(command, "run"), tmp_path, ["run", "no checkpoint"], files=["run"])
    assert [path.name for path in run.iterdir()] == ["config.toml"]


def test_settings_that_goalward_did_not_write_are_explained(goalward, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("[tool.black]\nline-length = 3\n")
    assert_explained(goalward("evaluate", "run"), tmp_path, ["config.toml"], files=["run"])


def test_tasks_as_json_are_one_document(goalward):
    code, out, err = goalward("tasks", "--json")
    rows = json.loads(out)

    assert (code, err) == (0, "")
    assert [row["name"] for row in rows] == list(TASKS)
    assert {"suite", "agents", "actions", "goals", "rewards", "installed"} <= set(rows[0])
    assert [row["name"] for row in rows if row["default"]] == ["toy/rooms"]
    assert all(row["installed"] for row in rows if row["suite"] == "toy")


@pytest.mark.parametrize("columns", [80, 200])
def test_tasks_are_listed_with_their_goals(goalward, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = goalward("tasks")
    rows = [line.split() for line in out.splitlines()]

    assert code == 0
    assert max(map(len, out.splitlines())) <= columns
    for task in TASKS.values():
        (row,) = (row for row in rows if row[:1] == [task.name])
        assert row[1] == str(task.num_agents)
        assert row[3] == task.actions
        assert f"goals: {', '.join(task.goals)}\n" in out
        assert f"rewards: {', '.join(task.rewards)}\n" in out


def test_a_suite_that_is_missing_is_listed_with_its_extra(goalward, monkeypatch):
    monkeypatch.setitem(TASKS, "toy/rooms", dataclasses.replace(TASKS["toy/rooms"], package="nosuch", extra="toys"))

    assert "toy (not installed: pip install 'goalward[toys]')\n" in goalward("tasks")[1]


def test_tasks_are_listed_in_any_encoding(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "goalward", "tasks"]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)

    assert (answer.returncode, answer.stderr) == (0, "")
    assert "toy/routing" in answer.stdout


def test_check_confirms_a_built_in_task(goalward):
    assert goalward("check", "toy/rooms") == (0, "toy/rooms keeps the contract.\n", "")


def test_the_version_and_the_help_are_shown(goalward):
    assert goalward("--version") == (0, f"goalward {gw.__version__}\n", "")
    code, out, _ = goalward("train", "--help")
    assert code == 0
    assert "--first-seed" in out


@pytest.mark.parametrize("module", [["-m", "goalward"], ["-m", "goalward.cli"]])
def test_a_process_ends_with_the_same_code_and_sentence(module, tmp_path):
    command = [sys.executable, *module, "train", "toy/room"]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert_explained((answer.returncode, answer.stdout, answer.stderr), tmp_path, ["toy/room", "Did you mean"])


@pytest.mark.parametrize(
    ("variable", "value", "parts"),
    [
        ("JAX_ENABLE_X64", "perhaps", ["JAX_ENABLE_X64", "perhaps"]),
        pytest.param(
            "JAX_PLATFORMS",
            "cuda",
            ["JAX_PLATFORMS=cuda", "finds no such device", "goalward[cuda]"],
            marks=pytest.mark.skipif(
                importlib.util.find_spec("jax_plugins") is not None, reason="JAX is installed for an accelerator"
            ),
        ),
        ("JAX_PLATFORMS", "abacus", ["JAX_PLATFORMS=abacus", "not in the list of known backends"]),
    ],
)
def test_what_jax_cannot_start_with_is_explained(variable, value, parts, tmp_path):
    command = [sys.executable, "-m", "goalward", "train", *TINY]
    environment = {**os.environ, variable: value}
    answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)

    assert_explained((answer.returncode, answer.stdout, answer.stderr), tmp_path, parts)


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    command = f"'{sys.executable}' -m goalward tasks --json | head -c 1"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=False)

    assert answer.stdout == "["
    assert answer.stderr == ""
