"""Goals of jaxgcrl: coordinates in metres. Whether reaching them is success is tested with the physics, in envs/."""

import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs.imports import quiet_import

with quiet_import():
    pytest.importorskip("brax")
    from goalward.envs.jaxgcrl.base import RobotState

pytestmark = pytest.mark.usefixtures("suite_arithmetic")


@pytest.mark.parametrize(("task", "dim"), [("jaxgcrl/reacher", 3), ("jaxgcrl/ant", 2), ("jaxgcrl/ant-u-maze", 2)])
def test_position_is_where_the_robot_is_and_should_be_in_metres(task, dim):
    goal = gw.make(task).goal
    position, target = jnp.arange(dim, dtype=jnp.float32)[None], -jnp.ones((1, dim))
    state = RobotState(None, position, target, jnp.int32(0), jnp.int32(0))

    assert goal.dim == dim
    np.testing.assert_array_equal(goal.achieved(state), position)
    np.testing.assert_array_equal(goal.target(state), target)
