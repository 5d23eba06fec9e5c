"""benchmarks/checkpoints.py trains the same twice, and looks at what it was told first."""

import json

import checkpoints
import pytest

import goalward as gw


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


def test_one_side_writes_a_checkpoint_after_every_evaluation(monkeypatch, tmp_path, capsys):
    """An evaluation before training and one after five iterations, as in the preset: both sides save after them."""
    shares = []

    def train(*args, train=gw.train, settings, **options):
        shares.append(settings["checkpoint_share"])
        return train(*args, settings=settings, **options)

    monkeypatch.setattr(gw, "train", train)
    checkpoints.main(["toy/rooms", "--preset", "quick", "--seeds", "2", "--evaluations", "1", "--out", str(tmp_path)])

    shown = capsys.readouterr().out
    row = json.loads((tmp_path / "toy-rooms-cppo-2-float32-quick.json").read_text())
    assert shares == [1.0, 0.02]
    assert [row[side]["checkpoints"] for side in ("every", "share")] == [2, 2]
    assert f"| `toy/rooms` | quick | 2 | 1 | {row['every']['seconds']:.1f} s (2) | " in shown
