"""A run's directory: made once, written by one process, rewound to a checkpoint."""

import errno
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import goalward as gw
from goalward.run.config import make_plan
from goalward.run.directory import RunDirectory, write_text


@pytest.fixture
def plan():
    return make_plan(task="toy/rooms", preset="quick")


def record(iteration, seed=0):
    where = {"evaluation": iteration // 2, "iteration": iteration, "step": 32 * iteration, "elapsed": 1.5}
    return {**where, "seed": seed, "win_rate": 0.1 + iteration, "return": 0.5, "length": 9.0}


def test_a_new_directory_holds_the_settings_and_the_versions(tmp_path, plan):
    run = RunDirectory.create(tmp_path / "deep" / "run", plan, "toy/rooms")
    versions = json.loads(run.versions.read_text())

    assert RunDirectory.open(run.path).plan() == plan
    assert tomllib.loads(run.config.read_text())["run"]["task"] == "toy/rooms"
    assert versions["goalward"] == gw.__version__
    assert {"jax", "flax", "optax", "numpy"} <= set(versions["packages"])
    assert sorted(path.name for path in run.path.iterdir()) == ["config.toml", "versions.json"]


def test_an_empty_directory_may_be_used(tmp_path, plan):
    assert RunDirectory.create(tmp_path, plan, "toy/rooms").config.is_file()


def test_a_directory_in_use_is_refused_and_left_alone(tmp_path, plan):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(gw.UserError, match="is in use"):
        RunDirectory.create(tmp_path, plan, "toy/rooms")

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path, plan):
    (tmp_path / "file").write_text("")
    with pytest.raises(gw.UserError, match="is in use"):
        RunDirectory.create(tmp_path / "file", plan, "toy/rooms")


@pytest.mark.parametrize("name", ["file/below", "/proc/run", "n" * 300])
def test_a_place_that_cannot_be_written_is_refused(tmp_path, plan, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(gw.UserError, match=r"Expected .* to be writable"):
        RunDirectory.create(tmp_path / name, plan, "toy/rooms")

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("task", "parts"),
    [
        ("smax/2s3z", ("smax", "2s3z")),
        ("toy/rooms,size=11", ("toy", "rooms,size=11")),
        ("package.module:Factory", ("package.module-Factory",)),
        ("../my task", ("task", "my-task")),
    ],
)
def test_default_directories_are_named_by_task_and_never_shared(task, parts, tmp_path, plan, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = RunDirectory.create(None, plan, task), RunDirectory.create(None, plan, task)

    assert first.path.parts[:-1] == ("runs", *parts, "cppo")
    assert second.path.parent == first.path.parent
    assert second.path != first.path


@pytest.mark.parametrize("name", ["", "a\0b", "\udcff"])
def test_what_cannot_be_a_name_is_refused(name, plan):
    with pytest.raises(gw.UserError, match="Expected"):
        RunDirectory.create(name, plan, "toy/rooms")


@pytest.mark.parametrize("path", [3, None, ["runs"]])
def test_what_is_no_path_is_no_run(path):
    with pytest.raises(gw.UserError, match="Expected the path of a run directory; found"):
        RunDirectory.open(path)


@pytest.mark.parametrize("name", [".", "nowhere"])
def test_a_directory_without_settings_is_no_run(tmp_path, name):
    with pytest.raises(gw.UserError, match=r"to be a run directory, which holds a config\.toml"):
        RunDirectory.open(tmp_path / name)


def test_records_are_read_back_as_they_were_written(tmp_path, plan):
    run = RunDirectory.create(tmp_path, plan, "toy/rooms")
    assert run.read_records() == []
    run.append_records([record(0), record(0, seed=1)])
    run.append_records([record(3)])

    assert run.read_records() == [record(0), record(0, seed=1), record(3)]


def test_records_after_a_checkpoint_are_dropped(tmp_path, plan):
    run = RunDirectory.create(tmp_path, plan, "toy/rooms")
    run.append_records([record(i, seed) for i in (0, 2, 4) for seed in (0, 1)])
    run.keep_records(up_to_iteration=2)

    assert run.read_records() == [record(0), record(0, 1), record(2), record(2, 1)]
    run.keep_records(up_to_iteration=-1)
    assert run.read_records() == []


def test_a_line_that_a_crash_left_unfinished_is_dropped(tmp_path, plan):
    run = RunDirectory.create(tmp_path, plan, "toy/rooms")
    run.append_records([record(0), record(2)])
    with run.metrics.open("a") as handle:
        handle.write('{"iteration": 4, "see')
    run.keep_records(up_to_iteration=2)
    run.append_records([record(4)])

    assert run.read_records() == [record(0), record(2), record(4)]


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"\xff\xfe", b"\0\0", b"[1, 2]", b'{"loss": 1}', b'{"iteration": "2", "seed": 0}', b"[" * 100_000],
)
def test_a_line_that_is_no_record_is_explained_and_the_file_left_alone(tmp_path, plan, line):
    run = RunDirectory.create(tmp_path, plan, "toy/rooms")
    run.append_records([record(0)])
    with run.metrics.open("ab") as handle:
        handle.write(line + b"\n")
    before = run.metrics.read_bytes()
    with pytest.raises(gw.UserError, match=r"Expected line 2 of '.*metrics\.jsonl' to be the record"):
        run.keep_records(up_to_iteration=2)

    assert run.metrics.read_bytes() == before


def test_a_last_line_cut_within_a_character_is_dropped(tmp_path, plan):
    run = RunDirectory.create(tmp_path, plan, "toy/rooms")
    run.append_records([record(0)])
    with run.metrics.open("ab") as handle:
        handle.write(b'{"note": "\xc3')

    assert run.read_records() == [record(0)]


@pytest.mark.parametrize("value", [object(), "\udcff"])
def test_settings_that_no_file_can_hold_are_refused_and_nothing_is_left(tmp_path, plan, value):
    plan = replace(plan, run=replace(plan.run, env={"shape": value}))
    with pytest.raises(gw.UserError, match=r"Expected settings that can be saved: .*\.$"):
        RunDirectory.create(tmp_path / "deep" / "run", plan, "toy/rooms")

    assert list(tmp_path.iterdir()) == []


def refuse(*_, **__):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.mark.parametrize(
    ("file", "what", "use"),
    [
        ("config.toml", "readable", lambda run: RunDirectory.open(run.path).plan()),
        ("metrics.jsonl", "readable", lambda run: run.read_records()),
        ("metrics.jsonl", "writable", lambda run: run.append_records([record(2)])),
        ("results.json", "writable", lambda run: write_text(run.results, "{}")),
        (".lock", "writable", lambda run: run.locked().__enter__()),
    ],
)
def test_a_file_that_the_system_refuses_is_explained(tmp_path, plan, monkeypatch, file, what, use):
    run = RunDirectory.create(tmp_path, plan, "toy/rooms")
    run.append_records([record(0)])
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(gw.UserError) as complaint:
        use(run)

    assert str(complaint.value) == f"Expected '{tmp_path / file}' to be {what}; Permission denied."


def test_a_directory_in_the_place_of_a_file_is_explained(tmp_path, plan):
    run = RunDirectory.create(tmp_path, plan, "toy/rooms")
    run.metrics.mkdir()
    with pytest.raises(gw.UserError, match=r"Expected '.*metrics\.jsonl' to be readable; Is a directory"):
        run.read_records()
    (tmp_path / ".lock").mkdir()
    with pytest.raises(gw.UserError, match=r"Expected '.*\.lock' to be writable; Is a directory"), run.locked():
        pass


def test_a_name_that_no_directory_can_have_is_explained(tmp_path):
    with pytest.raises(gw.UserError, match=r"to be readable; File name too long"):
        RunDirectory.open(tmp_path / ("n" * 300))


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "old")
    write_text(path, "new")

    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_second_process_cannot_write_the_same_run(tmp_path, plan):
    run = RunDirectory.create(tmp_path, plan, "toy/rooms")
    command = [sys.executable, "-m", "goalward", "train", "--resume", str(tmp_path)]
    with run.locked():
        answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert answer.returncode == 2
    assert answer.stderr == f"goalward: Another process is writing '{tmp_path}'; wait for it or choose another --out.\n"
    assert not run.checkpoints.exists()


def test_the_lock_is_free_again_afterwards(tmp_path, plan):
    run = RunDirectory.create(tmp_path, plan, "toy/rooms")
    refused = pytest.raises(gw.UserError, match="Another process is writing")
    with run.locked(), refused, RunDirectory(tmp_path).locked():
        pass
    with run.locked():
        assert run.config.is_file()
