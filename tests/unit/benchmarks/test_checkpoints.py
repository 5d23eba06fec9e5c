"""benchmarks/checkpoints.py trains the same twice, and looks at what it was told first."""

import json

import checkpoints
import pytest


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["toy/room"], "Did you mean toy/rooms"),
        (["toy/rooms", "--evaluations", "0"], "expected --evaluations to be at least 1; found 0"),
        (["toy/rooms", "--out", "/dev/null/results"], "Expected a folder that can be made and written"),
    ],
)
def test_mistakes_are_explained_before_anything_trains(monkeypatch, capsys, arguments, sentence):
    monkeypatch.setattr(checkpoints, "trained", None)  # not to be called
    with pytest.raises(SystemExit) as ended:
        checkpoints.main(arguments)

    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_one_side_writes_a_checkpoint_after_every_evaluation(tmp_path, capsys):
    """Before training, and three times after five iterations, as in the preset; the other keeps to its share."""
    checkpoints.main(["toy/rooms", "--preset", "quick", "--seeds", "2", "--evaluations", "3", "--out", str(tmp_path)])

    shown = capsys.readouterr().out
    row = json.loads((tmp_path / "toy-rooms-cppo-2-float32-quick.json").read_text())
    assert row["every"]["checkpoints"] == 4
    assert 2 <= row["share"]["checkpoints"] <= 4
    assert row["ratio"] == pytest.approx(row["every"]["seconds"] / row["share"]["seconds"], abs=0.01)
    assert f"| `toy/rooms` | quick | 2 | 3 | {row['every']['seconds']:.1f} s (4) | " in shown
