"""A study handed to Slurm, where there is one that takes jobs."""

import shutil
import subprocess
import time

import pytest

DECLARATION = """
seeds = 2
steps = 512
preset = "quick"

[settings]
render_episodes = 0

[[groups]]
tasks = ["toy/rooms"]
algos = ["cppo", "ppo"]
"""


def has_slurm():
    return shutil.which("sinfo") is not None and subprocess.run(["sinfo"], capture_output=True).returncode == 0


def test_without_slurm_it_is_refused(goalward, tmp_path, monkeypatch):
    (tmp_path / "small.toml").write_text(DECLARATION)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = goalward("study", tmp_path / "small.toml", "--out", tmp_path / "study", "--on", "slurm")

    assert code == 2
    assert "needs Slurm's command sbatch, which is not on this machine" in err
    assert out == ""


@pytest.mark.skipif(not has_slurm(), reason="needs a Slurm that answers sinfo")
def test_two_jobs_share_a_study(goalward, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(DECLARATION)
    arguments = ["study", "small.toml", "--out", "study", "--tasks", "toy/rooms", "--on", "slurm"]
    code, out, _ = goalward(*arguments, "--jobs", 2)
    assert code == 0
    assert "2 of 2 cells are left to 2 jobs" in out

    results = [tmp_path / "study" / "toy" / "rooms" / algo / "results.json" for algo in ("cppo", "ppo")]
    until = time.monotonic() + 240
    while not all(path.exists() for path in results):
        assert time.monotonic() < until, [log.read_text() for log in (tmp_path / "study" / "logs").glob("*.txt")]
        time.sleep(0.5)
    code, out, _ = goalward(*arguments)
    assert "All 2 cells are finished" in out


@pytest.mark.skipif(not has_slurm(), reason="needs a Slurm that answers sinfo")
def test_what_slurm_refuses_is_said(goalward, tmp_path, monkeypatch):
    (tmp_path / "small.toml").write_text(DECLARATION)
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    code, _, err = goalward("study", tmp_path / "small.toml", "--out", tmp_path / "study", "--on", "slurm")

    assert code == 2
    assert "Slurm refused the job" in err
    assert "partition" in err
