"""A study whose cells train in one program: what they record, and what happens when it is stopped or fails."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from exact_runs import final_state, records_of, same_bits

import goalward as gw
from goalward.studies.declare import load_study

DECLARATION = """
seeds = 2
steps = 256
preset = "quick"

[settings]
num_envs = 4
rollout_length = 8
batch_size = 16
hidden_sizes = [16]
eval_episodes = 8
num_evaluations = 4
absolute_factor = 0
render_episodes = 0
keep_checkpoints = 9
checkpoint_share = 1.0

[[groups]]
tasks = ["toy/rooms"]
algos = ["cppo"]

[groups.variants]
"""
VARIANTS = """
plain = {}
bold = { clip = 0.4, actor_lr = 1e-2 }
far = { gamma = 0.999, entropy_coef = 0.5, critic_lr = 5e-3 }
"""
TOGETHER = (
    "3 cells train in one program: toy/rooms with cppo plain, toy/rooms with cppo bold, toy/rooms with cppo far\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study_together")
    (folder / "three.toml").write_text(DECLARATION + VARIANTS)
    (folder / "wild.toml").write_text(DECLARATION + "tame = {}\nwild = { critic_lr = 1e30 }\n")
    return folder


def start(folder, study):
    """Starts a study in a process of its own; its runs share the tests' cache of compiled programs."""
    import jax

    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
    }
    command = [sys.executable, "-m", "goalward.cli", "study", study.name, "--out", study.stem]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


@pytest.fixture(scope="module")
def whole(folder):
    """The study in one go: its directory, and what it printed."""
    with start(folder, folder / "three.toml") as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return folder / "three", out


def test_cells_that_differ_in_traced_settings_train_in_one_program(whole):
    path, out = whole

    assert TOGETHER in out
    assert "3 cells of toy/rooms with cppo: begun\n" in out
    assert out.count("finished after") == 3
    assert "3 of 3 cells are finished" in out
    (log,) = (path / "logs" / "toy" / "rooms").glob("* and 2 more.txt")
    printed = log.read_text()
    assert printed.count("Compiling training") == 1
    assert "3 runs in one program, each of 2 seeds of toy/rooms with cppo" in printed
    assert "What it prints is in" in (path / "logs" / "toy" / "rooms" / "cppo-bold.txt").read_text()


def test_each_run_is_that_of_the_cell_trained_alone(whole, folder, tmp_path):
    """Of later evaluations nothing is asked: roundings that differ grow with every iteration."""
    study = load_study(str(folder / "three.toml"))
    for cell in study.cells:
        beside = whole[0] / cell.folder
        settings = {**study.settings, **cell.settings}
        alone = gw.train(
            cell.task, preset="quick", seeds=2, steps=256, settings=settings, out=tmp_path / str(cell.variant)
        )

        assert (beside / "config.toml").read_text() == (alone.path / "config.toml").read_text()
        records = [
            (a, b) for a, b in zip(records_of(beside), records_of(alone.path), strict=True) if a["iteration"] < 6
        ]
        assert len(records) == 3 * 2
        for record, expected in records:
            assert record["win_rate"] == expected["win_rate"]
            for name, value in expected.items():
                np.testing.assert_allclose(record[name] or 0.0, value or 0.0, atol=1e-3, rtol=1e-3, err_msg=name)


def test_a_program_that_was_stopped_goes_on_as_if_it_had_not_been(whole, folder):
    stopped = folder / "stopped.toml"
    stopped.write_text((folder / "three.toml").read_text())
    with start(folder, stopped) as process:
        wait_for(folder / "stopped/toy/rooms/cppo-far/checkpoints/0")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out.count("stopped after") == 3
    assert "Go on with: goalward study stopped.toml" in err

    with start(folder, stopped) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert TOGETHER in out
    env = gw.make("toy/rooms")
    for variant in ("plain", "bold", "far"):
        one, other = (path / "toy/rooms" / f"cppo-{variant}" for path in (folder / "stopped", whole[0]))
        assert records_of(one) == records_of(other)
        same_bits(final_state(one, env), final_state(other, env))


def test_a_configuration_that_blows_up_does_not_take_the_others_with_it(folder):
    with start(folder, folder / "wild.toml") as process:
        out, err = process.communicate(timeout=300)

    assert process.returncode == 1
    assert "2 cells train in one program: toy/rooms with cppo tame, toy/rooms with cppo wild" in out
    assert "2 of them are tried one by one. The program said: " in out
    assert "toy/rooms with cppo tame: finished after" in out
    assert "toy/rooms with cppo wild: failed after" in out
    assert "1 of 2 cells are finished" in out
    assert "- toy/rooms with cppo wild: " in err
    assert "became non-finite in iteration 1" in err


def wait_for(path, seconds=120):
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.05)
