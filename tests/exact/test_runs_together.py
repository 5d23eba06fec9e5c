"""Runs that train in one program: each directory holds what it would hold alone, and lives on alone."""

import shutil

import jax
import numpy as np
import pytest
from exact_runs import SETTINGS, final_state, records_of, same_bits

import goalward as gw
from goalward.run.config import make_plan
from goalward.run.directory import RunDirectory
from goalward.run.load import evaluate_run
from goalward.run.train import train_together

# Five iterations of 32 steps, evaluated after 0, 2 and 5.
SHORT = SETTINGS | {"seeds": 2, "steps": 5 * 32, "absolute_factor": 2}
VARIANTS = {
    "plain": {},
    "bold": {"clip": 0.4, "actor_lr": 1e-2},
    "far": {"gamma": 0.999, "entropy_coef": 0.5, "critic_lr": 5e-3},
}


def wanted(folder, names=VARIANTS):
    return [
        (make_plan(task="toy/rooms", preset="quick", settings=SHORT | VARIANTS[name]), folder / name) for name in names
    ]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The three runs by name; tests leave them as they are."""
    runs = train_together(wanted(tmp_path_factory.mktemp("together")))
    return dict(zip(VARIANTS, runs, strict=True))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The last of them, trained alone."""
    out = tmp_path_factory.mktemp("alone") / "far"
    return gw.train("toy/rooms", preset="quick", settings=SHORT | VARIANTS["far"], out=out)


def test_a_run_holds_the_files_of_one_that_was_trained_alone(together, alone):
    def files(path):
        paths = {p.relative_to(path) for p in path.rglob("*") if "state" not in p.parts}
        return {p for p in paths if "ocdbt" not in str(p)}

    beside = together["far"]
    assert files(beside.path) == files(alone.path)
    assert RunDirectory(beside.path).config.read_text() == RunDirectory(alone.path).config.read_text()
    assert beside.plan == alone.plan


def test_its_records_and_parameters_are_those_of_the_run_alone(together, alone):
    beside = together["far"]
    pairs = list(zip(records_of(beside.path), records_of(alone.path), strict=True))
    assert len(pairs) == 3 * 2
    for record, expected in pairs:
        assert record.keys() == expected.keys()
        for name, value in expected.items():
            # Of 8 episodes a rounding may turn one; nothing did here, where the draws are the same.
            np.testing.assert_allclose(record[name] or 0.0, value or 0.0, atol=1e-3, rtol=1e-3, err_msg=name)
    assert beside.final == alone.final
    for policy, expected in zip(beside.policies, alone.policies, strict=True):
        assert policy.seed == expected.seed
        _close(policy.params, expected.params)


def test_runs_differ_from_each_other(together):
    plain, bold, far = (final_state(run.path, gw.make("toy/rooms")).learner for run in together.values())
    for other in (bold, far):
        same_bits(plain.key, other.key)
        for part in ("policy", "critic"):
            with pytest.raises(AssertionError):
                _close(getattr(plain.params, part), getattr(other.params, part))


def test_a_run_can_be_loaded_evaluated_and_gone_on_with_alone(together, tmp_path):
    run = together["bold"]
    assert evaluate_run(run.path, episodes=4)["seeds"] == [0, 1]
    same_bits(gw.load(run.path, seed=1).params, run.policies[1].params)

    stopped = shutil.copytree(run.path, tmp_path / "stopped")
    shutil.rmtree(stopped / "checkpoints" / "5")
    resumed = gw.resume(stopped)
    assert resumed.final == run.final
    _close([p.params for p in resumed.policies], [p.params for p in run.policies])


def test_runs_that_were_stopped_go_on_together_as_if_they_had_not_been(together, tmp_path):
    for name, run in together.items():
        stopped = shutil.copytree(run.path, tmp_path / name)
        shutil.rmtree(stopped / "checkpoints" / "5")
        (stopped / "results.json").unlink()
    resumed = train_together(wanted(tmp_path))

    env = gw.make("toy/rooms")
    for run, whole in zip(resumed, together.values(), strict=True):
        assert records_of(run.path) == records_of(whole.path)
        same_bits(final_state(run.path, env), final_state(whole.path, env))
        assert run.final == whole.final


def test_several_devices_share_the_seeds_of_all_runs(together, tmp_path):
    """Two devices, of which one has the first run and half of the second; stopped and gone on with there."""
    runs = train_together(wanted(tmp_path), devices=2)
    for run, expected in zip(runs, together.values(), strict=True):
        assert all(len(leaf.devices()) == 1 for leaf in jax.tree.leaves(run.policies[0].params))
        _close([p.params for p in run.policies], [p.params for p in expected.policies])
        shutil.rmtree(run.path / "checkpoints" / "5")
        (run.path / "results.json").unlink()
    resumed = train_together(wanted(tmp_path), devices=2)

    for run, whole in zip(resumed, runs, strict=True):
        assert run.final == whole.final
        same_bits([p.params for p in run.policies], [p.params for p in whole.policies])


def test_runs_that_have_not_come_equally_far_are_refused(together, tmp_path):
    for name in ("plain", "bold"):
        shutil.copytree(together[name].path, tmp_path / name)
    shutil.rmtree(tmp_path / "bold" / "checkpoints" / "5")
    records = records_of(tmp_path / "plain")
    with pytest.raises(gw.UserError, match="to have come equally far; found newest checkpoints of iterations 5, 2"):
        train_together(wanted(tmp_path, ["plain", "bold"]))
    assert records_of(tmp_path / "plain") == records


def test_runs_that_differ_in_more_than_traced_settings_are_refused(tmp_path):
    (plan, path), (_, other) = wanted(tmp_path, ["plain", "bold"])
    wider = make_plan(task="toy/rooms", preset="quick", settings=SHORT | {"num_epochs": 3, "eval_episodes": 4})
    with pytest.raises(gw.UserError, match=r"clip, .* alone; found other values of eval_episodes, num_epochs\."):
        train_together([(plan, path), (wider, other)])
    assert list(tmp_path.iterdir()) == []


def test_what_is_saved_of_a_run_is_cut_out_by_the_host(tmp_path, monkeypatch):
    """Devices of a CPU that cut it out, each array in a program of its own, may wait for each other for ever."""
    saved = []

    def save(member, state, progress):
        saved.append({type(leaf) for leaf in jax.tree.leaves(state)})
        raise gw.UserError("seen")

    monkeypatch.setattr("goalward.run.member.Member.save", save)
    with pytest.raises(gw.UserError, match="seen"):
        train_together(wanted(tmp_path), devices=6)
    assert saved == [{np.ndarray}]


def test_what_does_not_fit_together_is_refused_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setattr("goalward.run.memory.device_memory", lambda: 160_000)  # for two of them it would be enough
    monkeypatch.setattr("goalward.run.train.Training", None)
    with pytest.raises(gw.UserError, match=r"Training would keep .* GB"):
        train_together(wanted(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_one_device_must_hold_what_it_measures_at_the_end(tmp_path, monkeypatch):
    """However many train, one of them measures a run: 2 seeds of 16,000 episodes of 121 bytes each."""
    monkeypatch.setattr("goalward.run.devices.num_sharing", lambda mesh: 1)  # as if each had a memory of its own
    monkeypatch.setattr("goalward.run.memory.device_memory", lambda: 3_000_000)
    monkeypatch.setattr("goalward.run.train.Training", None)
    plans = [
        (make_plan(task="toy/rooms", preset="quick", settings=SHORT | {"absolute_factor": 2000, "clip": clip}), path)
        for clip, path in [(0.1, tmp_path / "low"), (0.2, tmp_path / "mean"), (0.3, tmp_path / "high")]
    ]
    with pytest.raises(gw.UserError, match=r"An evaluation would keep .* GB"):
        train_together(plans, devices=6)


def test_a_configuration_that_blows_up_is_named_by_its_directory(tmp_path):
    plan, _ = wanted(tmp_path)[0]
    wild = make_plan(task="toy/rooms", preset="quick", settings=SHORT | {"critic_lr": 1e30})
    with pytest.raises(gw.GoalwardError, match=r"of seed [01] became non-finite in iteration 1; .*wild/checkpoints/0"):
        train_together([(plan, tmp_path / "tame"), (wild, tmp_path / "wild")])
    assert not (tmp_path / "tame" / "results.json").exists()
    assert gw.load(tmp_path / "tame").seed == 0


def _close(first, second):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), first, second)
