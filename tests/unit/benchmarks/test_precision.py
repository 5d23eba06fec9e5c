"""benchmarks/precision.py trains in both precisions, and looks at what it was told first."""

import json

import precision
import pytest
import tables


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["toy/rooms", "toy/room"], "Did you mean toy/rooms"),
        (["toy/rooms", "--seeds", "0"], "seeds must be"),
        (["toy/rooms", "--out", "/dev/null/results"], "Expected a folder that can be made and written"),
    ],
)
def test_mistakes_are_explained_before_anything_trains(monkeypatch, capsys, arguments, sentence):
    monkeypatch.setattr(precision, "trained", None)  # not to be called
    with pytest.raises(SystemExit) as ended:
        precision.main(arguments)

    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_difference_is_shown_with_its_standard_error():
    """By hand: variances of 0.02 and 0.08 over two seeds each."""
    rates = {"float32": {"sampled": [0.4, 0.6]}, "bfloat16": {"sampled": [0.4, 0.8]}}
    row = {"task": "toy/rooms", "seeds": 2, "steps": 65_536, "difference": 0.1, **rates}

    shown = tables.precisions([row]).splitlines()[-1]
    assert shown == "| `toy/rooms` | 2 | 65,536 | 0.500 | 0.600 | +0.100 ± 0.224 |  |"


def test_differences_of_eight_seeds_each_are_shown_beside_it():
    """Eight seeds that differ by 0.25, eight by -0.125, and one too few for eight more."""
    rates = {"float32": {"sampled": [0.5] * 17}, "bfloat16": {"sampled": [0.75] * 8 + [0.375] * 8 + [0.5]}}
    row = {"task": "toy/rooms", "seeds": 17, "steps": 65_536, "difference": 0.059, **rates}

    assert tables.precisions([row]).splitlines()[-1].endswith("| +0.250, -0.125 |")


def test_both_are_written_with_the_difference_of_their_means(monkeypatch, tmp_path):
    found = {"float32": [0.5, 0.25], "bfloat16": [0.75, 0.5]}
    monkeypatch.setattr(precision, "trained", lambda task, name, options: {"sampled": found[name]})
    precision.main(["toy/rooms", "--seeds", "2", "--steps", "65536", "--out", str(tmp_path / "new")])

    row = json.loads((tmp_path / "new" / "toy-rooms-2.json").read_text())
    assert (row["task"], row["seeds"], row["steps"], row["difference"]) == ("toy/rooms", 2, 65536, 0.25)
