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


def test_one_side_writes_a_checkpoint_after_every_evaluation(monkeypatch, tmp_path):
    """An evaluation before training and two after five iterations each, as in the preset."""
    shares = []

    def train(*args, train=gw.train, settings, **options):
        shares.append(settings["checkpoint_share"])
        return train(*args, settings=settings, **options)

    monkeypatch.setattr(gw, "train", train)
    checkpoints.main(["toy/rooms", "--preset", "quick", "--seeds", "2", "--evaluations", "2", "--out", str(tmp_path)])

    row = json.loads((tmp_path / "toy-rooms-cppo-2-float32-quick.json").read_text())
    assert shares == [1.0, 0.02]
    assert row["every"]["checkpoints"] == 3
    assert row["every"]["seconds"] > 0.0


def test_a_ratio_says_how_much_longer_it_takes_with_every_one(monkeypatch, tmp_path, capsys):
    def trained(task, options, share):
        return {"seconds": 5.0, "checkpoints": 3} if share == 1.0 else {"seconds": 4.0, "checkpoints": 2}

    monkeypatch.setattr(checkpoints, "trained", trained)
    checkpoints.main(["toy/rooms", "--seeds", "2", "--out", str(tmp_path)])

    shown = capsys.readouterr().out.splitlines()[-1]
    assert shown == "| `toy/rooms` | default | 2 | 10 | 5.0 s (3) | 4.0 s (2) | 1.25 |"
