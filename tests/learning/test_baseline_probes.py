"""Every baseline learns the probe environments that suit it, and nothing without what it learns from."""

import pytest
from probes import Aim, Choice, Corridor, Paid
from test_cppo_probes import learned_win_rates

import goalward as gw

REPLAY = {"replay_size": 64, "replay_ratio": 1.0}
SOFT = {**REPLAY, "alpha_lr": 3e-2}


@pytest.mark.parametrize("env", [Paid(Choice(2)), Paid(Corridor())], ids=["choice", "corridor"])
def test_ppo_learns_from_a_reward(env):
    assert learned_win_rates(env, gw.PPO).min() > 0.9


def test_ppo_learns_continuous_actions():
    assert learned_win_rates(Paid(Aim()), gw.PPO).min() > 0.6


def test_ppo_learns_nothing_without_a_reward():
    env = Choice()
    win_rates = learned_win_rates(Paid(env), gw.PPO, num_seeds=8, reward_scale=0.0)
    assert win_rates.mean() < env.uniform_win_rate + 0.05


@pytest.mark.parametrize("method", [gw.CDQN, gw.ICSAC])
def test_the_contrastive_ones_learn_nothing_from_the_goals_of_other_episodes(method):
    env = Choice()
    win_rates = learned_win_rates(env, method, num_seeds=8, positives="shuffled", **REPLAY)
    assert win_rates.mean() < env.uniform_win_rate + 0.05


def test_csac_learns_to_hit_the_target():
    assert learned_win_rates(Aim(), gw.CSAC, **SOFT).min() > 0.6


# The gradient of a relaxed sample is biased: it takes more updates, and a longer way stays below the other methods. Its
# seeds scatter more, too: of 16 on `choice` three ended below 0.9 (0.84 at least), with a mean of 0.945.
@pytest.mark.parametrize(
    ("env", "enough"),
    [pytest.param(Choice(2), 0.9, id="choice", marks=pytest.mark.slow), pytest.param(Corridor(), 0.7, id="corridor")],
)
def test_icsac_learns_discrete_actions(env, enough):
    settings = {**SOFT, "replay_ratio": 6.0, "target_entropy": 0.1, "gumbel_temperature": 0.5}
    assert learned_win_rates(env, gw.ICSAC, num_seeds=8, **settings).mean() > enough


def test_cdqn_learns_a_way_of_several_steps():
    assert learned_win_rates(Corridor(), gw.CDQN, **REPLAY).min() > 0.9
