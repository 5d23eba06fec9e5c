"""The reward of jaxnav: an episode by hand, and equality with the suite's own formula."""

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("jaxmarl")

import goalward as gw
from goalward.envs.jaxnav import JaxNavState
from goalward.rewards.jaxnav import Default

pytestmark = pytest.mark.usefixtures("suite_arithmetic")

FLAGS = ("reached", "crashed", "near")


@pytest.fixture(scope="module")
def env():
    return gw.make("jaxnav/4-agents")


@pytest.fixture(scope="module")
def reward(env):
    return Default(env)


def at(distances, **flags):
    """Returns a state with robots at given distances from targets at the origin."""
    count = len(distances)
    return JaxNavState(
        position=jnp.stack([jnp.array(distances, jnp.float32), jnp.zeros(count)], axis=-1),
        heading=jnp.zeros(count),
        velocity=jnp.zeros((count, 2)),
        target=jnp.zeros((count, 2)),
        walls=jnp.zeros((11, 11), bool),
        **{name: jnp.array([*map(bool, flags.get(name, [0] * count))]) for name in FLAGS},
    )


# Two robots. Robot 0 gains 0.4 m, comes near a wall, arrives, and crashes afterwards; robot 1 loses 0.2 m, crashes
# near the wall and stays there.
EPISODE = [
    at([1.0, 3.0]),
    at([0.6, 3.2]),
    at([0.4, 3.2], near=[1, 1], crashed=[0, 1]),
    at([0.2, 3.2], reached=[1, 0], crashed=[0, 1], near=[0, 1]),
    at([0.5, 3.2], reached=[1, 0], crashed=[1, 1], near=[1, 1]),
    at([0.5, 3.2], reached=[1, 0], crashed=[1, 1], near=[1, 1]),
]
OWN = [
    (0.25 * 0.4 - 0.01, 0.25 * -0.2 - 0.01),
    (0.25 * 0.2 - 0.01 - 0.1, -4 - 0.01 - 0.1),
    (4 - 0.01, -0.1),
    (-4 - 0.1, -0.1),
    (-0.1, -0.1),
]


def test_an_episode_by_hand(reward):
    for before, after, own in zip(EPISODE, EPISODE[1:], OWN, strict=False):
        given = [0.5 * x + 0.5 * sum(own) / 2 for x in own]
        np.testing.assert_allclose(reward(before, None, after), given, atol=1e-5)


def test_the_reward_is_float32(reward):
    assert reward(EPISODE[0], None, EPISODE[1]).dtype == jnp.float32


def test_every_combination_of_events_pays_what_the_suites_formula_says(env, reward):
    # Five bits: reached and crashed before, reached and crashed by this step, near.
    bits = np.array([[row >> k & 1 for k in range(5)] for row in range(32)], bool)
    reached, crashed = bits[:, 0], bits[:, 1]
    now_reached, now_crashed, near = reached | bits[:, 2], crashed | bits[:, 3], bits[:, 4]
    old, new = np.random.default_rng(0).uniform(0.1, 8.0, (2, 32))
    before = at(old, reached=reached, crashed=crashed)
    after = at(new, reached=now_reached, crashed=now_crashed, near=near)
    lidar = np.where(near, 0.3, 5.0)[:, None] / 6.0 - 0.5
    own, _ = env.suite.compute_reward(
        jnp.tile(lidar, (1, 205)).astype(jnp.float32),
        after.position,
        before.position,
        jnp.zeros((32, 2)),
        after.target,
        after.crashed,
        after.reached,
        jnp.zeros(32, bool),
        before.reached,
        before.crashed,
    )

    assert len(np.unique(np.round(own, 4))) > 15
    np.testing.assert_allclose(reward(before, None, after), 0.5 * own + 0.5 * own.mean(), atol=1e-5)


def test_the_constants_are_the_suites(env):
    constants = ("goal_rew", "weight_g", "coll_rew", "dt_rew", "lidar_rew", "rew_lambda", "weight_w")

    assert [getattr(env.suite, name) for name in constants] == [4.0, 0.25, -4.0, -0.01, -0.1, 0.5, 0.0]
