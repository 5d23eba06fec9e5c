"""The goal of jaxnav: values by hand, and what reaching it has to do with winning."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("jaxmarl")

import goalward as gw
from goalward.envs.jaxnav import JaxNavState
from goalward.goals.jaxnav import Distance

pytestmark = pytest.mark.usefixtures("suite_arithmetic")

WALLS = np.pad(np.zeros((9, 9), bool), 1, constant_values=True)


def somewhere(position, target, heading=(0.0, 0.0)):
    nobody = np.zeros(len(position), bool)
    return JaxNavState(
        position=jnp.array(position, jnp.float32),
        heading=jnp.array(heading, jnp.float32),
        velocity=jnp.zeros((len(position), 2)),
        target=jnp.array(target, jnp.float32),
        reached=nobody,
        crashed=nobody,
        near=nobody,
        walls=WALLS,
    )


@pytest.fixture(scope="module")
def env():
    return gw.make("jaxnav/4-agents", num_agents=2)


@pytest.fixture(scope="module")
def episode(env):
    """Returns states and time steps [T, ...]: robot 0 drives over its target and on, robot 1 past its own."""
    state = somewhere([(4.5, 2.5), (4.5, 7.5)], [(5.5, 2.5), (5.5, 8.0)])
    step = jax.jit(env.step)
    history = []
    for _ in range(30):
        state, shown = step(jax.random.key(0), state, jnp.array([[1.0, 0.0], [1.0, 0.0]]))
        history.append((state, shown))
    return jax.tree.map(lambda *x: np.stack(x), *history)


def test_the_distance_is_over_the_diagonal_of_the_map(env):
    state = somewhere([(1.5, 1.5), (4.5, 4.5)], [(4.5, 5.5), (4.5, 4.5)])
    goal = Distance(env)

    np.testing.assert_allclose(goal.achieved(state), [[5.0 / math.hypot(11, 11)], [0.0]], atol=1e-6)
    np.testing.assert_array_equal(goal.target(state), [[0.0], [0.0]])
    assert goal.achieved(state).dtype == goal.target(state).dtype == jnp.float32
    assert env.spec.goal_dim == 1


def test_opposite_corners_of_the_map_are_less_than_one_apart(env):
    achieved = Distance(env).achieved(somewhere([(1.5, 1.5), (9.5, 9.5)], [(9.5, 9.5), (1.5, 1.5)]))

    assert 0.7 < float(achieved.max()) < 1.0


def test_an_agent_has_won_exactly_if_it_was_within_the_goal_radius(env, episode):
    """The exception to "at the target if and only if won": once is enough, and 0.3 m are near enough."""
    states, shown = episode
    metres = shown.achieved[..., 0] * env.diagonal
    has_been_there = np.maximum.accumulate(metres <= 0.3, axis=0)

    np.testing.assert_array_equal(shown.success, has_been_there)
    assert shown.success[-1].tolist() == [True, False]
    assert metres[:, 1].min() == pytest.approx(0.5, abs=0.02)  # a near miss
    assert metres[-1, 0] > 0.3  # it has left its target again
    np.testing.assert_array_equal(states.crashed, False)
    np.testing.assert_array_equal(shown.goal, 0.0)


def test_the_observed_distance_is_not_what_the_goal_is_made_of(env):
    state = somewhere([(1.5, 1.5), (1.5, 9.5)], [(9.5, 9.5), (8.5, 9.5)])

    metres = np.asarray(Distance(env).achieved(state))[:, 0] * env.diagonal
    np.testing.assert_allclose(metres, [math.hypot(8, 8), 7.0], atol=1e-5)  # both read 6 m in the observation
