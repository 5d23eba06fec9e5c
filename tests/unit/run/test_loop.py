"""What the training loop says and when it saves; what it computes is tested in tests/learning and tests/exact."""

from types import SimpleNamespace

import pytest

import goalward as gw
from goalward.errors import PartnerLost
from goalward.run.loop import Training
from goalward.run.member import Member

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


@pytest.mark.parametrize(
    ("seconds_each", "expected", "share"),
    [(1.0, [0, 2, 4, 6], "12%"), (1.5, [0, 4, 6], "13%"), (4.0, [0, 6], "21%")],
)
def test_evaluations_go_without_a_checkpoint_while_these_exceed_their_share_of_the_time(
    tmp_path, monkeypatch, capsys, seconds_each, expected, share
):
    """By hand, with a share of a tenth, 5 s an iteration and an evaluation after every second one.

    Where one takes 1.5 s, 1.5 of 11.5 s have gone into them after two iterations, which is too much, and 1.5 of 21.5
    after four. At the end it is 4.5 of 34.5. Where one takes 4 s, the last is written although 4 of 34 are too much.
    """
    now = 0.0

    def clock():
        nonlocal now
        now += 1e-6  # so that no time is none
        return now

    def iterate(self, advance, state, iterate=Training._iterate):
        def slow(learner, count):
            nonlocal now
            now += 5 * count
            return advance(learner, count)

        return iterate(self, slow, state)

    def save(self, state, progress, save=Member.save):
        nonlocal now
        now += seconds_each
        save(self, state, progress)

    monkeypatch.setattr("goalward.run.loop.time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(Training, "_iterate", iterate)
    monkeypatch.setattr(Member, "save", save)
    settings = SETTINGS | {"num_evaluations": 3, "keep_checkpoints": 9, "checkpoint_share": 0.1}
    gw.train(preset="quick", seeds=2, steps=6 * 512, settings=settings, out=tmp_path / "run", show_progress=True)

    assert sorted(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()) == expected
    assert f"Evaluations took 0% and checkpoints {share} of the time after compilation.\n" in capsys.readouterr().out
