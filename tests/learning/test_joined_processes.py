"""Two processes with a device each train one run together."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from statistics import mean

import jax
import pytest

from goalward.run.load import load_all

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts both processes, given the options of each; they are ended with the test."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    # As fast as they can: unlike the tests, these train in earnest.
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "GOALWARD_DEVICES")}
    environment |= {
        "JAX_NUM_CPU_DEVICES": "1",
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "PYTHONUNBUFFERED": "1",
    }
    started = []

    def both(*options_of_each):
        for number, options in enumerate(options_of_each):
            command = [sys.executable, "-m", "goalward", "train", *options, "--join", f"{address},{number},2"]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes))
        return started

    yield both
    for process in started:
        process.kill()
        process.communicate()


def ended(processes, seconds):
    """Returns (exit code, output, errors) of each process."""
    shown = [process.communicate(timeout=seconds) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, shown, strict=True)]


def said(text):
    """Returns what a process said without the library that connects them."""
    return [line for line in text.splitlines() if "[Gloo]" not in line]


def test_they_learn_the_default_task(start, tmp_path):
    options = ["toy/rooms", "--seeds", "4", "--out", "run"]
    (code, out, _), (other_code, other_out, _) = ended(start(options, options), 1800)

    assert (code, other_code) == (0, 0)
    assert "2 devices (cpu), 2 seeds on each." in out
    assert said(other_out) == []
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if record["iteration"] == records[-1]["iteration"]]
    assert [record["seed"] for record in last] == [0, 1, 2, 3]
    assert mean(record["win_rate"] for record in last) >= 0.90
    assert (tmp_path / "run" / "results.json").is_file()
    assert (tmp_path / "run" / "media" / "episodes.gif").is_file()


def test_ctrl_c_in_one_stops_both_and_either_number_goes_on(start, tmp_path):
    options = [
        "--preset",
        "quick",
        "--seeds",
        "2",
        "--steps",
        "2_000_000",
        "--out",
        "run",
        "--set",
        "num_evaluations=2",
    ]
    first, second = processes = start(options, options)
    for line in first.stdout:
        if re.match(r"step +0 ", line):
            second.send_signal(signal.SIGINT)
            break
    results = ended(processes, 300)

    stopped = [re.search(r"Stopped after iteration (\d+); everything is saved", errors) for _, _, errors in results]
    assert [code for code, _, _ in results] == [130, 130]
    assert stopped[0][1] == stopped[1][1]
    assert (tmp_path / "run" / "checkpoints" / stopped[0][1]).is_dir()
    assert [policy.seed for policy in load_all(tmp_path / "run")[1]] == [0, 1]

    processes.clear()
    resumed = ["--resume", "run"]
    first, second = start(resumed, resumed)
    for line in first.stdout:
        if f"Going on after iteration {int(stopped[0][1]):,}" in line:
            first.send_signal(signal.SIGINT)
            break
    results = ended([first, second], 300)
    again = [re.search(r"Stopped after iteration (\d+)", errors)[1] for _, _, errors in results]
    assert again[0] == again[1]
    assert int(again[0]) >= int(stopped[0][1])


def test_processes_that_were_told_different_things_are_refused(start, tmp_path):
    same = ["--preset", "quick", "--out", "run"]
    results = ended(start([*same, "--seeds", "2"], [*same, "--seeds", "4"]), 120)

    for code, _, errors in results:
        assert code == 2
        assert "Expected all processes of a run to be given the same command; found differences." in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("mistake", "sentence"), [(["toy/roms"], "Unknown task 'toy/roms'"), (["--goal", "none"], "Unknown goal")]
)
def test_a_mistake_of_one_ends_both_at_once(start, tmp_path, mistake, sentence):
    same = ["--preset", "quick", "--out", "run"]
    (code, _, errors), (other_code, _, other_errors) = ended(start(same, [*mistake, *same]), 60)

    assert (code, other_code) == (2, 2)
    assert "Expected all processes to begin; number 1 did not, and says why." in errors
    assert sentence in other_errors
    assert not (tmp_path / "run").exists()
