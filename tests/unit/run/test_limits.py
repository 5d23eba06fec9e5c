"""Sizes beyond what arrays and counters can hold."""

import pytest

import goalward as gw


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
