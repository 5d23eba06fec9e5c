"""What the networks see of an observation, and what the environment gets of their outputs."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from goalward.envs.base import Box, Discrete, EnvSpec
from goalward.nets.actor import Actor
from goalward.nets.heads import make_head
from goalward.nets.normalise import RunningStats, init_stats

pytestmark = pytest.mark.usefixtures("strict_dtypes")


class SideBySide(nn.Module):
    """A policy network that shows its inputs."""

    def __call__(self, obs, goal):
        return jnp.concatenate([obs, goal], axis=-1)


def make_actor(action_space=None, *, num_agents=3, norm_obs=False, agent_id=True):
    action_space = action_space or Discrete(4)
    spec = EnvSpec(name="test", obs_dim=2, goal_dim=1, action_space=action_space, max_steps=1, num_agents=num_agents)
    head = make_head(action_space, min_log_std=-5.0, max_log_std=1.0, initial_log_std=0.0)
    actor = Actor(spec, SideBySide(), head, norm_obs=norm_obs, agent_id=agent_id)
    actor.act = jax.jit(actor.act)
    return actor


OBS = np.arange(12, dtype=np.float32).reshape(2, 3, 2)


def test_every_agent_of_a_team_sees_its_own_number():
    seen = np.asarray(make_actor().observe(init_stats(2), OBS))
    for env in range(2):
        for agent in range(3):
            number = [float(agent == other) for other in range(3)]
            np.testing.assert_allclose(seen[env, agent], [*OBS[env, agent], *number])


def test_a_single_agent_sees_no_number():
    seen = make_actor(num_agents=1).observe(init_stats(2), OBS[:, :1])
    np.testing.assert_allclose(seen, OBS[:, :1])


def test_the_number_can_be_left_out():
    np.testing.assert_allclose(make_actor(agent_id=False).observe(init_stats(2), OBS), OBS)


def test_observations_are_normalised_and_the_number_is_not():
    stats = RunningStats(jnp.float32(5.0), jnp.array([1.0, 2.0]), jnp.array([4.0, 9.0]))
    seen = np.asarray(make_actor(norm_obs=True).observe(stats, OBS))
    np.testing.assert_allclose(seen[..., :2], (OBS - [1.0, 2.0]) / [2.0, 3.0], rtol=1e-5)
    np.testing.assert_allclose(seen[1, :, 2:], np.eye(3))


def test_statistics_are_ignored_where_normalising_is_off():
    stats = RunningStats(jnp.float32(5.0), jnp.array([1.0, 2.0]), jnp.array([4.0, 9.0]))
    np.testing.assert_allclose(np.asarray(make_actor().observe(stats, OBS))[..., :2], OBS)


def test_the_network_gets_the_observation_and_the_goal():
    goal = np.full((2, 3, 1), 7.0, np.float32)
    outputs = np.asarray(make_actor().outputs({}, init_stats(2), OBS, goal))
    np.testing.assert_allclose(outputs[0, 1], [*OBS[0, 1], 0.0, 1.0, 0.0, 7.0])


def test_without_a_key_the_best_allowed_action_is_taken():
    outputs = jnp.array([[[0.0, 1.0, 5.0, 2.0]] * 3] * 2)
    actor = make_actor()
    np.testing.assert_array_equal(actor.act(outputs, None, None), np.full((2, 3), 2))
    mask = np.broadcast_to([True, True, False, True], outputs.shape)
    np.testing.assert_array_equal(actor.act(outputs, mask, None), np.full((2, 3), 3))


def test_with_a_key_actions_are_sampled_among_the_allowed_ones():
    outputs = jnp.zeros((200, 3, 4))
    actor, key = make_actor(), jax.random.key(0)
    assert set(np.unique(actor.act(outputs, None, key))) == {0, 1, 2, 3}
    mask = np.broadcast_to([True, False, False, True], outputs.shape)
    assert set(np.unique(actor.act(outputs, mask, key))) == {0, 3}


def test_continuous_actions_arrive_in_the_box():
    actor = make_actor(Box((-1.0, 0.0), (3.0, 0.5)), num_agents=1)
    outputs = jnp.array([[[0.0, 40.0, 0.0, 0.0]]])
    # The greedy action squashes the mean: the middle of one interval, the upper end of the other.
    np.testing.assert_allclose(actor.act(outputs, None, None), [[[1.0, 0.5]]], rtol=1e-6)
    sampled = np.asarray(actor.act(np.broadcast_to(outputs, (500, 1, 4)), None, jax.random.key(0)))
    assert (sampled >= [-1.0, 0.0]).all()
    assert (sampled <= [3.0, 0.5]).all()
    assert sampled[..., 0].std() > 0.5
