"""Rewards of jaxgcrl: episodes computed by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs.imports import quiet_import

with quiet_import():
    pytest.importorskip("brax")
    from goalward.envs.jaxgcrl.base import RobotState

pytestmark = pytest.mark.usefixtures("suite_arithmetic", "strict_dtypes")


def at(*position, target):
    """A state without physics, which no reward reads."""
    return RobotState(
        None, jnp.array([position], jnp.float32), jnp.array([target], jnp.float32), jnp.int32(0), jnp.int32(0)
    )


def rewards(env, states, actions):
    pairs = zip(states[:-1], actions, states[1:], strict=True)
    return [env.reward(old, jnp.array([action], jnp.float32), new).tolist() for old, action, new in pairs]


def test_an_arm_with_the_dense_reward_pays_its_distance():
    env = gw.make("jaxgcrl/reacher")
    target = (0.1, 0.0, 0.01)
    states = [at(0.2, 0.0, 0.01, target=target), at(0.1, 0.12, 0.01, target=target), at(*target, target=target)]

    # 12 cm off, then there; torques cost nothing.
    np.testing.assert_allclose(rewards(env, states, [(1, -1), (0.5, 0.5)]), [[-0.12], [0.0]], atol=1e-6)


@pytest.mark.parametrize("task", ["jaxgcrl/ant", "jaxgcrl/ant-u-maze"])
def test_an_ant_with_the_dense_reward_is_paid_for_speed_and_pays_for_effort(task):
    env = gw.make(task)
    target = (3.0, 4.0)
    states = [at(0.0, 0.0, target=target), at(0.3, 0.4, target=target), at(0.0, 0.0, target=target)]

    # Half a metre in 0.05 s is 10 m/s towards the target, and then away from it.
    np.testing.assert_allclose(
        rewards(env, states, [(1,) * 8, (0.5,) + (0,) * 7]), [[100 + 1 - 4], [-100 + 1 - 0.125]], atol=1e-3
    )


@pytest.mark.parametrize(
    ("task", "reach", "height"),
    [("jaxgcrl/reacher", 0.05, (0.01,)), ("jaxgcrl/ant", 0.5, ()), ("jaxgcrl/ant-u-maze", 0.5, ())],
)
def test_the_sparse_reward_pays_every_step_within_reach(task, reach, height):
    env = gw.make(task, reward="sparse")
    target = (0.0, 0.0, *height)
    states = [at(share * reach, 0.0, *height, target=target) for share in (2.0, 1.01, 0.99, 0.0, 3.0)]

    still = [(0.0,) * env.spec.action_space.size] * 4
    assert rewards(env, states, still) == [[0.0], [1.0], [1.0], [0.0]]
