"""benchmarks/starts.py starts processes, and writes what the table reads."""

import argparse
import json
import os
from pathlib import Path

import jax
import pytest
import starts
import tables

import goalward as gw

SMALL = """
[cppo]
num_envs = 8
rollout_length = 8
batch_size = 16
hidden_sizes = [8]

[run]
eval_episodes = 4
"""
IN_TOTAL = ("imports", "task", "trace", "lower", "compile", "first_state", "iterate")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The results of one small task."""
    folder = tmp_path_factory.mktemp("starts")
    preset = folder / "small.toml"
    preset.write_text(SMALL)
    starts.main(["toy/rooms", "--preset", str(preset), "--seeds", "2", "--out", str(folder)])
    return json.loads((folder / "toy-rooms-cppo-2-float32-small.json").read_text())


@pytest.mark.parametrize("cache", ["empty_cache", "full_cache"])
def test_a_start_is_the_sum_of_its_parts_and_evaluates_after_it(measured, cache):
    seconds = measured[cache]

    assert set(seconds) == {*IN_TOTAL, "total", "evaluation"}
    assert seconds["total"] == pytest.approx(sum(seconds[part] for part in IN_TOTAL), abs=0.05)  # each is rounded
    assert all(seconds[part] > 0.0 for part in ("imports", "task", "trace", "lower"))
    assert min(seconds.values()) >= 0.0


def test_a_jax_that_does_not_tell_how_long_it_lowers_is_noticed():
    with pytest.raises(SystemExit, match="_init, _advance, _evaluate"), starts.stages():
        jax.jit(lambda x: x + 1).lower(1.0)


def test_the_second_start_has_the_cache_that_the_first_has_filled(monkeypatch):
    found = []

    def start(task, options, cache):
        found.append(os.listdir(cache))
        (Path(cache) / "program").touch()
        return {"seconds": {"total": len(found)}, "versions": {}, "device": "cpu"}

    monkeypatch.setattr(starts, "start", start)
    starts.measure("toy/rooms", argparse.Namespace(algo="cppo", seeds=2, precision="float32", preset="quick"))

    assert found == [[], ["program"]]


def test_what_else_is_written(measured):
    assert {key: measured[key] for key in ("task", "algo", "seeds", "precision", "device")} == {
        "task": "toy/rooms",
        "algo": "cppo",
        "seeds": 2,
        "precision": "float32",
        "device": jax.devices()[0].device_kind,
    }
    assert measured["versions"]["goalward"] == gw.__version__


def test_the_table_shows_both_starts_and_the_parts_of_the_second():
    empty = dict.fromkeys(IN_TOTAL, 5.0) | {"trace": 2.0, "lower": 1.5, "compile": 20.25, "total": 43.75}
    full = dict(zip(IN_TOTAL, (1.0, 2.0, 3.0, 1.5, 2.25, 0.5, 0.75), strict=True)) | {"total": 11.0}
    row = {"task": "smax/3m", "algo": "cppo", "seeds": 10, "precision": "bfloat16", "preset": "default"}
    row |= {"device": "H200", "empty_cache": empty | {"evaluation": 9.0}, "full_cache": full | {"evaluation": 4.0}}

    head, _, line = tables.starts([row]).splitlines()
    assert "| imports / task / trace / lower / load / first state / iterate |" in head
    parts = "1.0 / 2.0 / 3.0 / 1.5 / 2.2 / 0.5 / 0.8"
    assert line == f"| `smax/3m` | default | H200 | 10 | 23.8 s | 43.8 s | 11.0 s | {parts} | 4.0 s |"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["toy/room"], "Did you mean toy/rooms"),
        (["toy/rooms", "--seeds", "0"], "seeds must be"),
        (["toy/rooms", "--algo", "csac"], "csac trains continuous actions"),  # found by the process that was started
    ],
)
def test_mistakes_are_explained(options, sentence, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        starts.main(["--out", str(tmp_path), *options])

    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())
