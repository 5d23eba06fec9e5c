"""Sizes beyond what arrays, counters and memories can hold."""

import jax
import pytest

import goalward as gw
from goalward.run.memory import memory_explained


@pytest.mark.parametrize(("num_envs", "rollout_length"), [(10**9, 128), (2**31, 1), (1, 2**31), (10**30, 10**30)])
def test_an_iteration_of_too_many_steps_is_refused(num_envs, rollout_length):
    with pytest.raises(gw.UserError, match=r"num_envs x rollout_length must be at most 2\^31 - 1 = 2147483647"):
        gw.CPPO(num_envs=num_envs, rollout_length=rollout_length)


def test_the_command_line_refuses_them_too(goalward, tmp_path):
    settings = ["--set", "num_envs=1000000000", "--steps", "1e12"]
    code, out, err = goalward("train", "toy/rooms", "--out", tmp_path / "run", *settings)

    assert (code, out) == (2, "")
    assert "num_envs x rollout_length" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "settings",
    [
        ["seeds=4_000_000_000"],
        ["num_envs=1_000_000_000", "rollout_length=2", "batch_size=2_000", "steps=2_000_000_000"],
        ["hidden_sizes=[10_000_000, 10_000_000]"],
    ],
)
def test_a_run_that_is_larger_than_the_machine_is_refused_before_it_begins(goalward, tmp_path, settings):
    code, out, err = goalward("train", "--preset", "quick", "--out", tmp_path / "run", "--set", *settings)

    assert (code, out) == (2, "")
    assert "GB; use fewer seeds, environments (num_envs)" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_run_that_turns_out_too_large_leaves_nothing_behind(tmp_path):
    with pytest.raises(gw.UserError, match="too little memory for this; use fewer seeds"):
        gw.train(preset="quick", settings={"eval_episodes": 10**10}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_failures_of_the_device_stay_what_they_are():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL: launch failed"), memory_explained():
        raise jax.errors.JaxRuntimeError("INTERNAL: launch failed")


def test_an_episode_longer_than_can_be_counted_is_refused():
    with pytest.raises(gw.UserError, match="max_steps of toy/rooms must be at most 2147483647; found 99999999999"):
        gw.make("toy/rooms", max_steps=99_999_999_999)
