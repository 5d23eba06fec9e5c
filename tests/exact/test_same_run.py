"""The same seed twice, and a run that was stopped and went on: the same bits."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
from exact_runs import SETTINGS, as_options, assert_same_run, records_of, same_bits, training_of

import goalward as gw
from goalward.cli import main
from goalward.run.directory import RunDirectory
from goalward.run.loop import Interrupted
from goalward.run.progress import Silent


def test_the_run_holds_what_a_run_should(finished):
    records = records_of(finished.path)

    assert [(r["evaluation"], r["iteration"], r["step"], r["seed"]) for r in records] == [
        (index, iteration, 32 * iteration, seed) for index, iteration in enumerate((0, 70, 140)) for seed in range(8)
    ]
    assert "critic/loss" in records[-1]
    assert sorted(path.name for path in (finished.path / "checkpoints").iterdir()) == ["0", "140", "70"]
    results = json.loads((finished.path / "results.json").read_text())
    assert sorted(results["toy"]["rooms"]["cppo"]) == [f"seed_{seed}" for seed in range(8)]
    assert finished.win_rate == sum(r["win_rate"] for r in records[-8:]) / 8


def test_the_same_seed_twice_gives_the_same_bits(finished, own_environment):
    """The second run gets the same environment from a factory of the user's."""
    _, again = own_environment

    assert_same_run(again.path, finished.path)
    same_bits([p.params for p in again.policies], [p.params for p in finished.policies])
    assert again.final == finished.final


def test_how_often_a_run_is_saved_changes_nothing_else(finished, tmp_path):
    run = gw.train(preset="quick", settings=SETTINGS | {"checkpoint_share": 0.0}, out=tmp_path / "run")

    assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == ["0", "140"]
    assert_same_run(run.path, finished.path)
    shutil.rmtree(run.path / "checkpoints" / "140")
    assert gw.resume(run.path).final == finished.final
    # One after the first evaluation of every start.
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == ["0", "140", "70"]
    assert_same_run(run.path, finished.path)


def test_seeds_learn_different_things(finished):
    first, second = finished.policies[:2]
    with pytest.raises(AssertionError):
        same_bits(first.params.policy, second.params.policy)


def test_after_a_crash_a_run_goes_on_from_the_last_checkpoint_as_if_nothing_had_happened(finished, copy_of_finished):
    # The checkpoint after 140 iterations is lost, the records of that evaluation and half a line more are there.
    shutil.rmtree(copy_of_finished / "checkpoints" / "140")
    with (copy_of_finished / "metrics.jsonl").open("a") as handle:
        handle.write('{"evaluation": 9, "iterat')
    resumed = gw.resume(copy_of_finished)

    assert_same_run(copy_of_finished, finished.path)
    assert resumed.final == finished.final


class PressesCtrlC(Silent):
    """Presses Ctrl-C when the run has got past a number of iterations."""

    def __init__(self, after):
        self.after = after
        self.done = None

    def iterated(self, done, win_rate, steps_per_second):
        if done > self.after and self.done is None:
            self.done = done
            signal.raise_signal(signal.SIGINT)


def test_a_run_stopped_between_evaluations_goes_on_as_if_it_had_not_been(finished, tmp_path):
    directory = RunDirectory.create(tmp_path / "stopped", finished.plan, "toy/rooms")
    reporter = PressesCtrlC(after=70)
    with pytest.raises(Interrupted) as stopped:
        training_of(directory, reporter).run()

    assert 70 < reporter.done < 140
    assert str(stopped.value) == (
        f"Stopped after iteration {reporter.done}; everything is saved. "
        f"Go on with: goalward train --resume {directory.path}"
    )
    assert {record["iteration"] for record in records_of(directory.path)} == {0, 70}
    resumed = gw.resume(directory.path)
    assert_same_run(directory.path, finished.path)
    assert resumed.final == finished.final


def test_ctrl_c_ends_with_130_and_the_printed_command_finishes_the_run(finished, tmp_path, environment, capsys):
    out = tmp_path / "stopped"
    options = ["--preset", "quick", "--out", str(out), *as_options(SETTINGS)]
    command = [sys.executable, "-m", "goalward", "train", "toy/rooms", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=tmp_path, **pipes) as process:
        for line in process.stdout:
            if re.match(r"step +0 ", line):  # the first evaluation is done, training begins
                process.send_signal(signal.SIGINT)
                break
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "Traceback" not in errors
    stopped = re.search(r"Stopped after iteration (\d+); everything is saved\. Go on with: goalward (.+)\n", errors)
    assert int(stopped[1]) < 140
    assert not (out / "results.json").exists()

    with pytest.raises(SystemExit) as exit_info:
        main(shlex.split(stopped[2]))
    assert exit_info.value.code == 0
    assert f"Going on after iteration {stopped[1]} of 140." in capsys.readouterr().out
    assert_same_run(out, finished.path)


def lose_part_of_the_progress(run, part):
    path = run / "checkpoints" / "140" / "progress" / "metadata"
    content = json.loads(path.read_text())
    del content[part]
    path.write_text(json.dumps(content))
    (run / "checkpoints" / "140" / "digests.json").unlink()


def cut_the_arrays_short(run):
    files = [path for path in (run / "checkpoints" / "140" / "state").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-100])


def put_a_file_for_the_checkpoints(run):
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("")


def lose_a_record(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))


def lose_an_evaluation(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if '"iteration": 70,' not in line))


DAMAGES = {
    "no settings": (lambda run: (run / "config.toml").unlink(), "which holds a config.toml"),
    "no arrays": (lambda run: shutil.rmtree(run / "checkpoints" / "140" / "state"), "140 is damaged"),
    "arrays cut short": (cut_the_arrays_short, "140 is damaged"),
    "no clock": (lambda run: lose_part_of_the_progress(run, "elapsed"), "to hold a number `elapsed`"),
    "no history": (lambda run: lose_part_of_the_progress(run, "history"), "a list `history`"),
    "no folder of checkpoints": (put_a_file_for_the_checkpoints, "to be a directory of checkpoints; found a file"),
    "a lost record": (lose_a_record, "one line per seed for iteration 140; found seeds [0, 1, 2, 3, 4, 5, 6]."),
    "a lost evaluation": (lose_an_evaluation, "to hold the evaluation after iteration 70; found none."),
    "no records": (lambda run: (run / "metrics.jsonl").write_text(""), "the evaluation after iteration 0; found none."),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_not_silently_started_anew(copy_of_finished, goalward, damage):
    inflict, complaint = DAMAGES[damage]
    inflict(copy_of_finished)
    records = (copy_of_finished / "metrics.jsonl").read_text()
    code, _, err = goalward("train", "--resume", copy_of_finished)

    assert code == 2
    assert complaint in err
    assert err.count("\n") == 1
    assert (copy_of_finished / "metrics.jsonl").read_text() == records
