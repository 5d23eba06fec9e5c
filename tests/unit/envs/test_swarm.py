"""toy/swarm: momentum, repulsion, parking, and rewards by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs.draw import AGENT_COLOURS
from goalward.envs.toy.swarm import SwarmState

pytestmark = pytest.mark.usefixtures("strict_dtypes")

LONGEST = 4 * 2**0.5  # the diagonal of the square


@pytest.fixture(scope="module")
def env():
    return gw.make("toy/swarm", num_agents=2)


@pytest.fixture(scope="module")
def sparse():
    return gw.make("toy/swarm", num_agents=2, reward="sparse")


def at(positions, targets=((0.0, 0.0), (0.0, 4.0)), arrived=(False, False), velocity=None):
    velocity = jnp.zeros((2, 2)) if velocity is None else jnp.array(velocity)
    return SwarmState(jnp.array(positions), jnp.array(targets), jnp.array(arrived), velocity)


def pushes(*actions):
    return [np.array(action, np.float32) for action in actions]


# Agent 0 goes right with v = 0.125, 0.1875, 0.21875; agent 1 does nothing.
RACE = pushes(*[((0.0, 1.0), (0.0, 0.0))] * 3)


def test_half_of_the_velocity_survives_a_step(env, play):
    history = play(env, at([(2.0, 1.0), (0.0, 2.0)], [(2.0, 1.6), (4.0, 4.0)]), RACE[:2])
    columns = [state.position[0, 1].item() for state, _ in history]

    np.testing.assert_allclose(columns, [1.125, 1.3125], atol=1e-6)


def test_an_episode_with_dense_rewards(env, play):
    # Distances of agent 0: 0.8, 0.675, 0.4875, and 0 once it is nearer than 0.35.
    history = play(env, at([(2.0, 1.0), (0.0, 2.0)], [(2.0, 1.8), (4.0, 4.0)]), RACE)
    rewards = np.stack([step.reward for _, step in history])

    np.testing.assert_allclose(rewards[:, 0], np.array([0.125, 0.1875, 0.4875 + LONGEST]) / LONGEST, atol=1e-5)
    np.testing.assert_array_equal(rewards[:, 1], 0)
    assert [step.active.tolist() for _, step in history] == [[True, True], [True, True], [False, True]]
    assert not any(bool(step.success) for _, step in history)


def test_an_episode_with_sparse_rewards_ends_when_both_are_there(sparse, play):
    state = at([(2.0, 1.0), (0.0, 2.0)], [(2.0, 1.8), (0.0, 2.6)])
    history = play(sparse, state, [*RACE, *pushes(*[((1.0, 1.0), (0.0, 1.0))] * 2)])

    # Agent 1 is 0.6, 0.475, 0.2875 away; agent 0 is parked by then.
    assert [step.reward.tolist() for _, step in history] == [[0, 0], [0, 0], [1, 0], [0, 0], [0, 1]]
    assert [bool(step.terminated) for _, step in history] == [False, False, False, False, True]
    assert [bool(step.success) for _, step in history] == [False, False, False, False, True]


def test_two_that_overlap_push_each_other_apart_evenly(env, play):
    # 0.3 apart where 0.5 is needed: each gives way by half of what is missing.
    ((state, _),) = play(env, at([(2.0, 2.0), (2.0, 2.3)]), pushes(np.zeros((2, 2))))

    np.testing.assert_allclose(state.position, [[2.0, 1.9], [2.0, 2.4]], atol=1e-5)
    np.testing.assert_array_equal(state.velocity, np.zeros((2, 2)))  # being pushed gives no momentum


def test_two_that_do_not_overlap_leave_each_other_alone(env, play):
    ((state, _),) = play(env, at([(2.0, 2.0), (2.0, 2.51)]), pushes(np.zeros((2, 2))))
    np.testing.assert_allclose(state.position, [[2.0, 2.0], [2.0, 2.51]])


def test_one_that_has_arrived_neither_moves_nor_pushes(env, play):
    state = at([(2.0, 2.0), (2.0, 2.2)], [(2.0, 2.0), (0.0, 4.0)], arrived=(True, False), velocity=[(0.1, 0.1)] * 2)
    ((state, step),) = play(env, state, pushes([(1.0, 1.0), (0.0, 0.0)]))

    np.testing.assert_allclose(state.position, [[2.0, 2.0], [2.05, 2.25]], atol=1e-6)
    np.testing.assert_array_equal(state.velocity[0], [0.0, 0.0])
    assert step.active.tolist() == [False, True]


def test_the_edge_of_the_square_holds(env, play):
    ((state, _),) = play(env, at([(0.05, 0.05), (3.95, 3.95)], [(2.0, 2.0), (2.0, 2.0)]), pushes([(-1, -1), (1, 1)]))
    np.testing.assert_allclose(state.position, [[0.0, 0.0], [4.0, 4.0]])


def test_pushes_are_limited_to_the_box(env, play):
    ((state, _),) = play(env, at([(2.0, 1.0), (0.0, 2.0)]), pushes([(0.0, 40.0), (0.0, 0.0)]))
    np.testing.assert_allclose(state.position[0], [2.0, 1.125])


def test_the_observation_shows_place_speed_way_and_the_other(env, play):
    state = at(
        [(2.0, 1.0), (3.0, 2.0)], [(0.0, 0.0), (3.0, 3.0)], arrived=(False, True), velocity=[(0.0, 0.25), (0, 0)]
    )
    ((_, step),) = play(env, state, pushes([(0.0, 1.0), (0.0, 0.0)]))  # agent 0 goes on at full speed to (2, 1.25)

    np.testing.assert_allclose(step.obs[0], [0.0, -0.375, 0.0, 1.0, -0.5, -0.3125, 0.25, 0.1875, 1.0], atol=1e-6)


def test_the_distance_goal_is_the_manhattan_distance_scaled_to_one(play):
    env = gw.make("toy/swarm", num_agents=2, goal="distance")
    ((_, step),) = play(env, at([(1.0, 2.0), (4.0, 0.0)], [(0.0, 0.0), (0.0, 4.0)]), pushes(np.zeros((2, 2))))

    np.testing.assert_allclose(step.achieved, [[3 / 8], [1.0]], atol=1e-6)
    np.testing.assert_array_equal(step.goal, [[0.0], [0.0]])


def test_nobody_has_arrived_at_the_start_and_all_is_inside_the_square():
    env = gw.make("toy/swarm")
    states, step = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 512))
    points = np.stack([states.position, states.target])

    assert step.active.all()
    assert not step.terminated.any()
    assert 0 <= points.min() < 0.1
    assert 3.9 < points.max() <= 4


def test_the_picture_shows_every_agent_in_its_colour(env):
    image = env.render(at([(1.0, 1.0), (3.0, 2.0)]))
    unit = image.shape[0] / 4

    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    assert tuple(image[int(unit), int(unit)]) == AGENT_COLOURS[0]
    assert tuple(image[int(3 * unit), int(2 * unit)]) == AGENT_COLOURS[1]


@pytest.mark.parametrize("agents", [1, 0, 2.5])
def test_numbers_of_agents_out_of_range_are_refused(agents):
    with pytest.raises(
        gw.UserError, match=f"num_agents of toy/swarm must be a whole number of at least 2; found {agents}"
    ):
        gw.make("toy/swarm", num_agents=agents)
