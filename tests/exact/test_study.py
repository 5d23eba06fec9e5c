"""A study from its declaration to its report: real runs, one of them broken, one killed in the middle."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DECLARATION = """
title = "A small study"
seeds = 3
steps = 2_048
preset = "quick"

[settings]
num_evaluations = 4
render_episodes = 2

[[groups]]
tasks = ["toy/rooms"]
algos = ["cppo", "ppo"]

[[groups]]
tasks = ["toy/swarm"]
algos = ["cppo"]

[[groups]]
tasks = ["broken_world:make"]
algos = ["cppo"]
"""
BROKEN = "def make():\n    raise RuntimeError('this world cannot be made')\n"
GOOD_CELLS = ("toy/rooms/cppo", "toy/rooms/ppo", "toy/swarm/cppo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    (folder / "small.toml").write_text(DECLARATION)
    (folder / "broken_world.py").write_text(BROKEN)
    return folder


def start(folder, out):
    """Starts the study in a process of its own; its runs share the tests' cache of compiled programs."""
    import jax

    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "goalward.cli", "study", "small.toml", "--out", str(out)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def whole(folder):
    """The study in one go: its directory, exit code and what it printed."""
    with start(folder, folder / "whole") as process:
        out, err = process.communicate(timeout=300)
    return folder / "whole", process.returncode, out, err


def test_a_cell_that_raises_is_listed_and_does_not_stop_the_rest(whole):
    path, code, out, err = whole

    assert code == 1
    assert "3 of 4 cells are finished" in out
    assert "1 cell failed; the same command tries again." in err
    assert "broken_world:make with cppo" in err
    assert "this world cannot be made" in err
    assert "Traceback" not in err
    for cell in GOOD_CELLS:
        assert (path / cell / "results.json").is_file()


def test_a_study_that_was_stopped_killed_and_shared_ends_in_the_same_report(folder, whole, goalward):
    """Ctrl-C in the first cell, a kill in the second, then two processes at once."""
    out = folder / "broken_off"
    with start(folder, out) as process:
        wait_for(out / "toy/rooms/cppo/metrics.jsonl")
        process.send_signal(signal.SIGINT)
        shown, complaint = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "toy/rooms with cppo: stopped after" in shown
    assert "Go on with: goalward study small.toml --out" in complaint
    assert not (out / "toy/rooms/cppo/results.json").exists()

    with start(folder, out) as process:
        wait_for(out / "toy/rooms/ppo/metrics.jsonl")
        (run,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        os.kill(int(run), signal.SIGKILL)
    written = (out / "toy/rooms/cppo/results.json").stat().st_mtime_ns
    assert not (out / "toy/swarm/cppo").exists()

    with start(folder, out) as one, start(folder, out) as other:
        printed = [process.communicate(timeout=300)[0] for process in (one, other)]
    assert all("3 of 4 cells are finished" in shown for shown in printed)
    assert "toy/rooms with cppo" not in "".join(printed)
    assert (out / "toy/rooms/cppo/results.json").stat().st_mtime_ns == written

    pages = []
    for path in (whole[0], out):
        code, _, err = goalward("report", path)
        assert code == 0, err
        pages.append(without_timings((path / "report" / "index.html").read_text()))
    assert pages[0] == pages[1]


def wait_for(path, seconds=120):
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.05)


def without_timings(page):
    """Returns the page without the columns of speed and minutes."""
    return re.sub(r'<td class="number timing".*?</td>', "", page)
