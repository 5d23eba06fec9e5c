"""toy/rooms: walls, doors, the shortest ways, and rewards by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path

import goalward as gw
from goalward.envs.draw import AGENT_COLOURS, WALL
from goalward.envs.maps import all_shortest_paths
from goalward.envs.toy.base import distinct_cells
from goalward.envs.toy.rooms import RoomsState, four_rooms, open_moves

pytestmark = pytest.mark.usefixtures("strict_dtypes")

UP, DOWN, LEFT, RIGHT = range(4)

PLAN = """
....#....
.........
....#....
....#....
#.#####.#
....#....
....#....
.........
....#....
"""


@pytest.fixture(scope="module")
def env():
    return gw.make("toy/rooms")


@pytest.fixture(scope="module")
def sparse():
    return gw.make("toy/rooms", reward="sparse")


def at(position, target):
    return RoomsState(jnp.array([position]), jnp.array([target]), jnp.zeros(1, bool))


def moves(*actions):
    return [np.array([action], np.int32) for action in actions]


def scipy_paths(walls):
    """Returns [H, W, H, W] from a graph with an edge between neighbouring free cells."""
    height, width = walls.shape
    number = np.arange(height * width).reshape(height, width)
    pairs = [(number[:, :-1], number[:, 1:]), (number[:-1], number[1:])]
    ends = np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in pairs], axis=1)
    ends = ends[:, ~walls.ravel()[ends].any(0)]
    graph = coo_array((np.ones(ends.shape[1]), ends), shape=(number.size, number.size))
    paths = shortest_path(graph.tocsr(), directed=False, unweighted=True)
    paths[walls.ravel()] = paths[:, walls.ravel()] = np.inf
    return paths.reshape(height, width, height, width)


def test_two_walls_with_a_door_in_each_half_make_four_rooms():
    drawn = "\n".join("".join(".#"[int(cell)] for cell in row) for row in four_rooms(9))
    assert drawn == PLAN.strip()


def test_the_smallest_map_has_its_doors_at_the_edge():
    drawn = "\n".join("".join(".#"[int(cell)] for cell in row) for row in four_rooms(5))
    assert drawn.split() == [".....", "..#..", ".###.", "..#..", "....."]


@pytest.mark.parametrize("size", [5, 7, 9, 13])
def test_shortest_ways_agree_with_scipy(size):
    walls = four_rooms(size)
    np.testing.assert_array_equal(all_shortest_paths(walls), scipy_paths(walls))


def test_there_is_no_way_through_a_wall_without_a_door():
    walls = np.array([[False, True, False], [False, True, False]])
    paths = all_shortest_paths(walls)

    assert paths[0, 0, 1, 0] == 1
    assert np.isinf(paths[0, 0, 0, 2])
    assert np.isinf(paths[0, 1, 0, 1])


def test_the_longest_way_is_from_corner_to_corner(env):
    assert env.longest_path == 16


def test_moves_are_open_where_the_next_cell_is_free():
    walls = np.array([[False, True], [False, False]])
    expected = {  # up, down, left, right
        (0, 0): [False, True, False, False],
        (1, 0): [True, False, False, True],
        (1, 1): [False, False, True, False],
    }
    found = open_moves(walls)
    assert {cell: found[cell].tolist() for cell in expected} == expected


def test_an_episode_with_dense_rewards(env, play):
    history = play(env, at((0, 0), (0, 2)), moves(RIGHT, LEFT, RIGHT, RIGHT))
    positions = [state.position.tolist() for state, _ in history]
    rewards = [step.reward.tolist() for _, step in history]

    assert positions == [[[0, 1]], [[0, 0]], [[0, 1]], [[0, 2]]]
    assert rewards == [[1 / 16], [-1 / 16], [1 / 16], [1 + 1 / 16]]
    assert [bool(step.terminated) for _, step in history] == [False, False, False, True]
    assert [bool(step.success) for _, step in history] == [False, False, False, True]


def test_an_episode_with_sparse_rewards(sparse, play):
    history = play(sparse, at((0, 0), (0, 2)), moves(RIGHT, LEFT, RIGHT, RIGHT))
    assert [step.reward.tolist() for _, step in history] == [[0], [0], [0], [1]]


def test_the_dense_reward_counts_the_way_around_the_wall(env, play):
    # (0, 5) lies two cells to the right behind the wall; the way leads through the door at (1, 4).
    history = play(env, at((0, 3), (0, 5)), moves(LEFT, RIGHT, DOWN, RIGHT, RIGHT, UP))
    rewards = [step.reward.item() for _, step in history]

    np.testing.assert_allclose(rewards, np.array([-1, 1, 1, 1, 1, 17]) / 16)


@pytest.mark.parametrize(
    ("position", "action"),
    [((0, 3), RIGHT), ((3, 0), DOWN), ((0, 0), UP), ((0, 0), LEFT), ((8, 8), DOWN), ((8, 8), RIGHT), ((4, 1), LEFT)],
)
def test_a_move_into_a_wall_or_off_the_map_changes_nothing(env, play, position, action):
    ((state, step),) = play(env, at(position, (6, 6)), moves(action))

    assert state.position.tolist() == [list(position)]
    assert step.reward.item() == 0


@pytest.mark.parametrize(
    ("position", "action", "door"), [((1, 3), RIGHT, (1, 4)), ((3, 7), DOWN, (4, 7)), ((7, 5), LEFT, (7, 4))]
)
def test_a_door_can_be_walked_through(env, play, position, action, door):
    (state, _), (beyond, _) = play(env, at(position, (0, 0)), moves(action, action))

    assert state.position.tolist() == [list(door)]
    assert beyond.position.tolist() == [[2 * door[0] - position[0], 2 * door[1] - position[1]]]


def test_the_observation_is_row_and_column_one_hot_and_the_mask_follows_the_walls(env, play):
    ((_, step),) = play(env, at((1, 3), (8, 8)), moves(UP))  # now at (0, 3): wall to the right, edge above

    assert np.flatnonzero(step.obs[0]).tolist() == [0, 9 + 3]
    assert step.action_mask.tolist() == [[False, True, True, False]]


def test_goals_are_cells_scaled_to_one(env, play):
    ((_, step),) = play(env, at((1, 3), (8, 4)), moves(UP))  # now at (0, 3)

    np.testing.assert_allclose(step.achieved, [[-1.0, -0.25]])
    np.testing.assert_allclose(step.goal, [[1.0, 0.0]])


def test_start_and_target_are_different_free_cells(env):
    states, step = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 512))
    start, target = np.asarray(states.position)[:, 0], np.asarray(states.target)[:, 0]

    assert (start != target).any(-1).all()
    assert not env.walls[tuple(start.T)].any()
    assert not env.walls[tuple(target.T)].any()
    assert len(np.unique(start, axis=0)) == (~env.walls).sum()  # every free cell turns up
    assert not step.terminated.any()


def test_drawn_cells_are_distinct_and_all_equally_likely():
    cells = jnp.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    draws = jax.vmap(lambda key: distinct_cells(key, cells, 2))(jax.random.split(jax.random.key(0), 2400))
    number = np.asarray(draws) @ np.array([2, 1])
    counts = np.bincount(number[:, 0] * 4 + number[:, 1], minlength=16).reshape(4, 4)

    assert (np.diag(counts) == 0).all()
    assert counts[~np.eye(4, dtype=bool)] == pytest.approx(200, abs=75)  # 12 ordered pairs, 5 standard deviations


def test_the_picture_shows_the_agent_the_target_and_the_walls(env):
    image = env.render(at((0, 0), (8, 8)))
    cell = image.shape[0] / 9

    def middle(row, col):
        return tuple(image[int((row + 0.5) * cell), int((col + 0.5) * cell)])

    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    assert middle(0, 0) == AGENT_COLOURS[0]
    assert middle(4, 4) == WALL
    assert middle(8, 8) != AGENT_COLOURS[0]  # a ring, open in the middle
    assert (image[int(8 * cell) :, int(8 * cell) :] == AGENT_COLOURS[0]).all(-1).any()


@pytest.mark.parametrize("size", [3, 8, -9])
def test_a_size_that_makes_no_rooms_is_refused(size):
    with pytest.raises(gw.UserError, match=rf"size of toy/rooms must be .*found {size}"):
        gw.make("toy/rooms", size=size)


def test_an_argument_that_the_task_does_not_have_is_named():
    with pytest.raises(gw.UserError, match=r"toy/rooms.*width"):
        gw.make("toy/rooms", width=9)
