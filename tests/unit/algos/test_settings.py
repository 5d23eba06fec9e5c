"""The fields of settings objects: types, ranges, and what passes unchecked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.algos.settings import Range, coerce_fields, traced_fields


def test_the_nearest_batch_of_a_huge_rollout_is_found():
    with pytest.raises(gw.UserError, match="the nearest that does is 128"):
        gw.CPPO(num_envs=2**20 + 1, rollout_length=128, batch_size=127)


def test_ranges_say_what_they_contain():
    assert str(Range(low=1)) == "at least 1"
    assert str(Range(low=0, is_open=True)) == "above 0"
    assert str(Range(0, 1)) == "between 0 and 1"
    assert [value in Range(0, 1) for value in (-0.1, 0, 1, 1.1)] == [False, True, True, False]
    assert [value in Range(0, 1, is_open=True) for value in (0, 0.5, 1)] == [False, True, False]


def test_checks_apply_to_objects_made_in_python():
    with pytest.raises(gw.UserError, match="clip must be between 0 and 1"):
        gw.CPPO(clip=2.0)
    with pytest.raises(gw.UserError, match=r"num_envs must be a whole number; found 4\.5"):
        gw.CPPO(num_envs=4.5, rollout_length=2, batch_size=9)
    with pytest.raises(gw.UserError, match=r"clip must be a number; found 'small'"):
        gw.CPPO(clip="small")
    assert gw.CPPO(hidden_sizes=[8]).hidden_sizes == (8,)


@pytest.mark.parametrize("array", [jnp.float32, np.float32, np.asarray])
def test_a_number_in_an_array_is_checked_like_any_other(array):
    assert gw.CPPO(clip=array(0.25)) == gw.CPPO(clip=0.25)
    assert type(gw.CPPO(clip=array(0.25)).clip) is float
    with pytest.raises(gw.UserError, match=r"clip must be between 0 and 1, both excluded; found 7\.0"):
        gw.CPPO(clip=array(7.0))


@pytest.mark.parametrize("value", [{}, {0.1}, object(), np.full(2, 0.1), 1j])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(gw.UserError, match="clip must be a number; found"):
        gw.CPPO(clip=value)


def test_a_traced_value_passes_unchecked():
    assert jax.jit(lambda clip: gw.CPPO(clip=clip).clip + 1.0)(7.0) == 8.0


def test_settings_that_decide_a_shape_or_a_branch_are_not_traced():
    common = {"actor_lr", "critic_lr", "lr_end", "max_grad_norm", "adam_epsilon"}
    clipped = common | {"clip", "entropy_coef", "adv_std_floor"}
    soft = common | {"gamma", "logsumexp_coef", "alpha_lr", "initial_alpha", "target_entropy"}

    assert traced_fields(gw.CPPO) == clipped | {"gamma", "logsumexp_coef"}
    assert traced_fields(gw.PPO) == clipped | {"gamma", "gae_lambda", "reward_scale"}
    assert traced_fields(gw.CSAC) == soft
    assert traced_fields(gw.ICSAC) == soft | {"gumbel_temperature"}
    assert traced_fields(gw.CDQN) == common | {"gamma", "logsumexp_coef", "epsilon_start", "epsilon_end"}


def test_configurations_are_compared_without_their_traced_settings():
    first, second = gw.CPPO(clip=0.1, gamma=0.9), gw.CPPO(clip=0.3, actor_lr=1e-3)

    assert first.without_traced() == second.without_traced()
    assert first.without_traced() != gw.CPPO(clip=0.1, gamma=0.9, num_epochs=2).without_traced()
    assert first.clip == 0.1


def test_traced_settings_are_not_checked_against_each_other():
    """Plain numbers are: a learning rate must not end above where it starts."""
    with pytest.raises(gw.UserError, match="lr_end must not exceed"):
        gw.CPPO(lr_end=1.0)
    config = gw.CPPO()
    assert jax.jit(lambda rate: config.with_traced({"lr_end": rate}).lr_end)(1.0) == 1.0


def test_values_are_brought_into_the_type_of_their_field():
    values = coerce_fields(gw.CPPO, {"clip": 0.5, "actor_lr": 1, "num_envs": 4.0, "hidden_sizes": [3]}, "a test")

    assert values == {"clip": 0.5, "actor_lr": 1.0, "num_envs": 4, "hidden_sizes": (3,)}
    assert [type(v) for v in values.values()] == [float, float, int, tuple]
