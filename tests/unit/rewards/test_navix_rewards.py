"""Rewards of navix: episodes by hand, and why the suite's own cost of walls is not used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw

navix = pytest.importorskip("navix")
pytestmark = pytest.mark.usefixtures("suite_arithmetic")

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)
WAY = (LEFT, FORWARD, RIGHT, FORWARD, FORWARD, FORWARD, RIGHT, DONE, FORWARD, FORWARD)  # from (1, 1) to (3, 3)
BUMPS = (1, 5)  # the wall to the north, then the one to the east


def rewards_of(env, state, actions):
    step = jax.jit(env.step)
    rewards = []
    for action in actions:
        state, shown = step(jax.random.key(0), state, jnp.array([action]))
        assert shown.reward.shape == (1,)
        rewards.append(float(shown.reward[0]))
    return rewards, shown


@pytest.mark.parametrize("reward", ["shaped", "sparse"])
def test_an_episode_by_hand(reward):
    env = gw.make("navix/empty-16x16", env_id="Navix-Empty-5x5-v0", reward=reward)
    state, first = jax.jit(env.reset)(jax.random.key(0))
    rewards, last = rewards_of(env, state, WAY)

    expected = {
        "shaped": [-0.02 if t in BUMPS else -0.01 for t in range(9)] + [0.99],
        "sparse": [0.0] * 9 + [1.0],
    }
    np.testing.assert_allclose(rewards, expected[reward], atol=1e-6)
    assert first.reward.tolist() == [0.0]
    assert last.success


def test_a_key_and_a_closed_door_are_no_walls_but_inner_walls_are():
    env = gw.make("navix/doorkey-random-16x16", env_id="Navix-DoorKey-Random-5x5-v0")
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    entities = dict(state.entities)
    for name, cells in (("player", [(1, 1)]), ("key", [(2, 1)]), ("door", [(1, 2)]), ("wall", [(2, 2), (3, 2)])):
        entities[name] = entities[name].replace(position=jnp.array(cells))
    entities["player"] = entities["player"].replace(direction=jnp.array([0]))
    state = state._replace(entities=entities)
    # Door, key, take the key, walk to (2, 1), and run into the wall at (2, 2).
    rewards, _ = rewards_of(env, state, (FORWARD, RIGHT, FORWARD, PICK_UP, FORWARD, LEFT, FORWARD))
    np.testing.assert_allclose(rewards, [-0.01] * 6 + [-0.02], atol=1e-6)


def test_the_suites_cost_of_walls_has_the_wrong_sign_and_its_event_is_sticky():
    suite = navix.make("Navix-Empty-5x5-v0", reward_fn=navix.rewards.wall_hit_cost)
    timestep, step, rewards = jax.jit(suite.reset)(jax.random.key(0)), jax.jit(suite._step), []
    for action in WAY:
        timestep = step(timestep, jnp.int32(action))
        rewards.append(float(timestep.reward))
    np.testing.assert_allclose(rewards, [0.0] + [0.01] * 9, atol=1e-6)
