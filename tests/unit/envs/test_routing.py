"""toy/routing: who moves first, what blocks, and rewards by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs.draw import AGENT_COLOURS
from goalward.envs.toy.routing import RoutingState

pytestmark = pytest.mark.usefixtures("strict_dtypes")

STAY, UP, DOWN, LEFT, RIGHT = range(5)


@pytest.fixture(scope="module")
def env():
    return gw.make("toy/routing", num_agents=2)


@pytest.fixture(scope="module")
def sparse():
    return gw.make("toy/routing", num_agents=2, reward="sparse")


def at(positions, targets=((5, 5), (5, 0)), arrived=(False, False)):
    return RoutingState(jnp.array(positions), jnp.array(targets), jnp.array(arrived))


def moves(*actions):
    return [np.array(action, np.int32) for action in actions]


def test_an_episode_with_dense_rewards(env, play):
    # Agent 0 needs two moves to the right, agent 1 one up; the longest way on the board is 10 moves.
    history = play(env, at([(0, 0), (3, 3)], [(0, 2), (2, 3)]), moves((RIGHT, DOWN), (STAY, UP), (RIGHT, UP)))
    rewards = [step.reward.tolist() for _, step in history]

    np.testing.assert_allclose(rewards, [[0.1, -0.1], [0.0, 0.1], [1.1, 1.1]], atol=1e-6)
    assert [step.active.tolist() for _, step in history] == [[True, True], [True, True], [False, False]]
    assert [bool(step.terminated) for _, step in history] == [False, False, True]
    assert [bool(step.success) for _, step in history] == [False, False, True]


def test_an_episode_with_sparse_rewards_pays_each_arrival_once(sparse, play):
    history = play(sparse, at([(0, 0), (3, 3)], [(0, 1), (1, 3)]), moves((RIGHT, UP), (LEFT, STAY), (STAY, UP)))

    assert [step.reward.tolist() for _, step in history] == [[1, 0], [0, 0], [0, 1]]
    assert [bool(step.success) for _, step in history] == [False, False, True]


def test_two_that_want_one_cell_go_in_the_order_of_their_numbers(env, play):
    ((state, _),) = play(env, at([(2, 1), (2, 3)]), moves((RIGHT, LEFT)))
    assert state.position.tolist() == [[2, 2], [2, 3]]

    ((state, _),) = play(env, at([(2, 3), (2, 1)]), moves((LEFT, RIGHT)))
    assert state.position.tolist() == [[2, 2], [2, 1]]


def test_a_later_agent_may_follow_into_the_cell_just_left(env, play):
    ((state, _),) = play(env, at([(2, 2), (2, 1)]), moves((RIGHT, RIGHT)))
    assert state.position.tolist() == [[2, 3], [2, 2]]


def test_an_earlier_agent_is_blocked_by_one_that_is_about_to_leave(env, play):
    ((state, _),) = play(env, at([(2, 1), (2, 2)]), moves((RIGHT, RIGHT)))
    assert state.position.tolist() == [[2, 1], [2, 3]]


def test_neighbours_cannot_swap(env, play):
    ((state, _),) = play(env, at([(2, 1), (2, 2)]), moves((RIGHT, LEFT)))
    assert state.position.tolist() == [[2, 1], [2, 2]]


def test_the_edge_of_the_board_blocks(env, play):
    ((state, _),) = play(env, at([(0, 0), (5, 5)], [(3, 3), (3, 4)]), moves((UP, RIGHT)))
    assert state.position.tolist() == [[0, 0], [5, 5]]


def test_an_agent_that_has_arrived_does_not_move_and_blocks_its_cell(env, play):
    state = at([(0, 1), (0, 0)], [(0, 1), (0, 3)], arrived=(True, False))
    ((state, step),) = play(env, state, moves((DOWN, RIGHT)))

    assert state.position.tolist() == [[0, 1], [0, 0]]
    assert step.active.tolist() == [False, True]
    assert step.action_mask.tolist() == [[True, False, False, False, False], [True, False, True, False, False]]


def test_an_agent_walks_over_the_target_of_another(env, play):
    ((state, step),) = play(env, at([(0, 0), (3, 3)], [(0, 5), (0, 1)]), moves((RIGHT, STAY)))

    assert state.position.tolist() == [[0, 1], [3, 3]]
    assert step.active.tolist() == [True, True]


def test_the_observation_has_place_way_and_neighbourhood(env, play):
    # Agent 0 at (1, 2) sees the board's edge two rows up, and agent 1 one cell to its right.
    ((_, step),) = play(env, at([(1, 2), (1, 3)], [(4, 0), (5, 5)]), moves((STAY, STAY)))
    obs = np.asarray(step.obs[0])
    around = np.zeros((5, 5))
    around[0] = 1
    around[2, 2] = around[2, 3] = 1

    assert np.flatnonzero(obs[:12]).tolist() == [1, 6 + 2]
    np.testing.assert_allclose(obs[12:14], [3 / 6, -2 / 6], atol=1e-6)
    np.testing.assert_array_equal(obs[14:].reshape(5, 5), around)


def test_the_distance_goal_counts_moves_over_the_longest_way(play):
    env = gw.make("toy/routing", num_agents=2, goal="distance")
    ((_, step),) = play(env, at([(0, 0), (5, 1)], [(5, 5), (5, 0)]), moves((STAY, LEFT)))

    np.testing.assert_allclose(step.achieved, [[1.0], [0.0]])
    np.testing.assert_allclose(step.goal, [[0.0], [0.0]])


def test_starts_and_targets_are_all_different_cells():
    env = gw.make("toy/routing")
    states, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 256))
    cells = np.concatenate([states.position, states.target], axis=1) @ np.array([6, 1])

    assert all(len(set(row)) == 8 for row in cells.tolist())
    assert cells.min() == 0
    assert cells.max() == 35


def test_no_two_agents_are_ever_on_one_cell():
    env = gw.make("toy/routing", size=4, num_agents=4)
    state, _ = env.reset(jax.random.key(0))

    def one_step(state, key):
        moved, _ = env.step(key, state, jax.random.randint(key, (4,), 0, 5))
        return moved._replace(arrived=jnp.zeros(4, bool)), moved.position

    _, positions = jax.jit(lambda s, k: jax.lax.scan(one_step, s, k))(state, jax.random.split(jax.random.key(1), 2000))
    cells = np.asarray(positions) @ np.array([4, 1])

    assert all(len(set(row)) == 4 for row in cells.tolist())
    assert len(np.unique(cells, axis=0)) > 500  # they do move
    assert positions.min() == 0
    assert positions.max() == 3


def test_the_picture_shows_every_agent_in_its_colour(env):
    image = env.render(at([(0, 0), (2, 3)]))
    cell = image.shape[0] / 6

    assert image.dtype == np.uint8
    assert image.ndim == 3
    assert tuple(image[int(0.5 * cell), int(0.5 * cell)]) == AGENT_COLOURS[0]
    assert tuple(image[int(2.5 * cell), int(3.5 * cell)]) == AGENT_COLOURS[1]


@pytest.mark.parametrize(("size", "agents"), [(2, 2), (6, 1), (6, 10), (3, 3)])
def test_boards_that_are_too_small_or_too_full_are_refused(size, agents):
    with pytest.raises(gw.UserError, match=rf"of toy/routing must be .*found ({size}|{agents})\."):
        gw.make("toy/routing", size=size, num_agents=agents)
