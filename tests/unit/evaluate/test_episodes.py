"""Whole episodes: each one that is started counts once."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from goalward.data.rollout import collect, open_worlds
from goalward.envs.base import Box, Discrete, EnvSpec, TimeStep
from goalward.envs.uniform import uniform_policy
from goalward.evaluate.episodes import run_episodes

pytestmark = pytest.mark.usefixtures("strict_dtypes")


SHORT, LONG, SHARE_SHORT = 2, 9, 0.3
EPISODES = 2_000


class ShortIsWon:
    """An episode is short and won with probability 0.3, else long and lost.

    Step k gives reward k * action to the first of two agents. After its end an episode turns into a win that pays 1000
    a step, which nobody may see.
    """

    spec = EnvSpec(name="test/short", obs_dim=1, goal_dim=1, action_space=Discrete(3), max_steps=20, num_agents=2)

    def reset(self, key):
        short = jax.random.bernoulli(key, SHARE_SHORT)
        state = (short, jnp.zeros((), jnp.int32))
        return state, self.view(state, jnp.zeros(2))

    def step(self, key, state, action):
        short, elapsed = state
        state = (short, elapsed + 1)
        beyond = elapsed >= self.length(short)
        pay = jnp.where(beyond, 1000, (elapsed + 1) * action[0]).astype(jnp.float32)
        return state, self.view(state, jnp.stack([pay, 0.0 * pay]))

    def length(self, short):
        return jnp.where(short, SHORT, LONG)

    def view(self, state, reward):
        short, elapsed = state
        nothing = jnp.zeros((2, 1))
        return TimeStep(
            obs=nothing,
            achieved=nothing,
            goal=nothing,
            terminated=elapsed == self.length(short),
            success=short | (elapsed > self.length(short)),
            reward=reward,
        )


class NeverOver(ShortIsWon):
    """Breaks the contract: no step ends the episode, and all of them claim success."""

    def view(self, state, reward):
        step = super().view(state, reward)
        return step._replace(terminated=jnp.array(False), truncated=jnp.array(False), success=jnp.array(True))


class OneOfTwoWins(ShortIsWon):
    """Each agent wins for itself, the first one in short episodes, the second never; reports the time."""

    def view(self, state, reward):
        step, (short, elapsed) = super().view(state, reward), state
        return step._replace(
            success=jnp.stack([step.success, jnp.array(False)]),
            metrics={"time": elapsed.astype(jnp.float32), "was_short": short},
        )


def always_two(key, obs, goal, mask):
    return jnp.full(obs.shape[:-1], 2, jnp.int32)


@pytest.fixture(scope="module")
def results():
    found = jax.jit(lambda key: run_episodes(ShortIsWon(), always_two, key, EPISODES))(jax.random.key(0))
    return jax.tree.map(np.asarray, found)


def four_sigma(num_episodes):
    return 4.0 * math.sqrt(SHARE_SHORT * (1.0 - SHARE_SHORT) / num_episodes)


def test_win_rate_is_that_of_the_episodes_started(results):
    assert results.success.shape == (EPISODES,)
    assert abs(results.success.mean() - SHARE_SHORT) < four_sigma(EPISODES)


def test_counting_what_ends_within_a_window_would_overrate_the_policy():
    env = ShortIsWon()

    def act(key, obs, goal, mask):
        action = always_two(key, obs, goal, mask)
        return action, action, action

    @jax.jit
    def window(key):
        key_start, key_run = jax.random.split(key)
        return collect(env, act, key_run, open_worlds(env, key_start, EPISODES), 12)[1]

    rollout = window(jax.random.key(0))
    ended = int(rollout.done.sum())
    assert ended > EPISODES
    assert float(rollout.success[rollout.done].sum()) / ended > SHARE_SHORT + 2 * four_sigma(ended)


def test_lengths_and_returns_are_exact_and_end_with_the_episode(results):
    assert set(results.length.tolist()) == {SHORT, LONG}
    np.testing.assert_array_equal(results.success, results.length == SHORT)
    # 2 * (1 + ... + length) for one of two agents, averaged over them.
    np.testing.assert_allclose(results.ret, results.length * (results.length + 1) / 2)


def test_an_episode_that_never_ends_is_cut_at_the_limit_and_not_won():
    found = jax.jit(lambda key: run_episodes(NeverOver(), always_two, key, 3))(jax.random.key(0))
    np.testing.assert_array_equal(found.length, [20] * 3)
    assert not found.success.any()


def test_where_each_agent_wins_for_itself_the_share_of_agents_counts(results):
    found = jax.jit(lambda key: run_episodes(OneOfTwoWins(), always_two, key, EPISODES))(jax.random.key(0))
    np.testing.assert_array_equal(found.success, results.success / 2)


def test_metrics_of_the_task_are_those_of_the_last_step():
    found = jax.jit(lambda key: run_episodes(OneOfTwoWins(), always_two, key, EPISODES))(jax.random.key(0))
    np.testing.assert_array_equal(found.metrics["time"], found.length)
    np.testing.assert_array_equal(found.metrics["was_short"], found.length == SHORT)


class Spaces:
    """Only a specification, which is all that the uniform policy reads."""

    def __init__(self, action_space):
        self.spec = EnvSpec(name="test", obs_dim=1, goal_dim=1, action_space=action_space, max_steps=1)


def test_the_uniform_policy_draws_equally_from_the_allowed_actions():
    obs = jnp.zeros((3_000, 1, 1))
    mask = jnp.broadcast_to(jnp.array([True, False, True, True]), (3_000, 1, 4))
    action = np.asarray(uniform_policy(Spaces(Discrete(4)))(jax.random.key(0), obs, obs, mask))
    assert action.shape == (3_000, 1)
    assert action.dtype == np.int32
    counts = np.bincount(action[:, 0], minlength=4)
    assert counts[1] == 0
    assert stats.chisquare(counts[[0, 2, 3]]).pvalue > 1e-3


def test_the_uniform_policy_fills_an_asymmetric_box():
    low, high = (-1.0, 0.0), (3.0, 0.5)
    obs = jnp.zeros((3_000, 1, 1))
    action = np.asarray(uniform_policy(Spaces(Box(low, high)))(jax.random.key(0), obs, obs, obs))
    assert action.shape == (3_000, 1, 2)
    for d in range(2):
        assert stats.kstest(action[:, 0, d], stats.uniform(low[d], high[d] - low[d]).cdf).pvalue > 1e-3
