"""What the training loop says when it cannot go on; what it computes is tested in tests/learning and tests/exact."""

import pytest

import goalward as gw
from goalward.errors import PartnerLost

SETTINGS = {"num_evaluations": 1, "eval_episodes": 1, "render_episodes": 0}


@pytest.mark.parametrize(
    ("step", "is_first", "names_the_way_on"),
    [("_train", True, False), ("_finish", True, True), ("_finish", False, False)],
)
def test_who_loses_a_partner_hears_how_to_go_on(tmp_path, monkeypatch, step, is_first, names_the_way_on):
    """Where there is a checkpoint, and from the process that writes it."""

    def lose(training, *_):
        monkeypatch.setattr("goalward.run.loop.is_first", lambda: is_first)
        raise PartnerLost("One is gone.")

    monkeypatch.setattr(f"goalward.run.loop.Training.{step}", lose)
    with pytest.raises(PartnerLost) as lost:
        gw.train(preset="quick", seeds=2, steps=512, settings=SETTINGS, out=tmp_path / "run")

    way_on = f" Go on from the last checkpoint with: goalward train --resume {tmp_path / 'run'}"
    assert str(lost.value) == f"One is gone.{way_on if names_the_way_on else ''}"
    assert (tmp_path / "run").exists() == (step == "_finish")
