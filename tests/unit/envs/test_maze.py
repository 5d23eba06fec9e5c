"""toy/maze: momentum, walls, and rewards by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs.draw import AGENT_COLOURS, WALL
from goalward.envs.maps import all_shortest_paths, parse_map
from goalward.envs.toy.maze import MAP, MazeState

pytestmark = pytest.mark.usefixtures("strict_dtypes")


@pytest.fixture(scope="module")
def env():
    return gw.make("toy/maze")


@pytest.fixture(scope="module")
def sparse():
    return gw.make("toy/maze", reward="sparse")


def at(position, target=(6.5, 6.5), velocity=(0.0, 0.0)):
    return MazeState(jnp.array([position]), jnp.array([target]), jnp.zeros(1, bool), jnp.array([velocity]))


def pushes(*actions):
    return [np.array([action], np.float32) for action in actions]


# From rest with a full push: v = 0.2, 0.3, 0.35, 0.375, 0.3875 cells per step.
EAST = pushes(*[(0.0, 1.0)] * 5)


def test_half_of_the_velocity_survives_a_step(env, play):
    history = play(env, at((0.5, 0.5), (0.5, 2.5)), EAST)
    columns = [state.position[0, 1].item() for state, _ in history]
    speeds = [state.velocity[0, 1].item() for state, _ in history]

    np.testing.assert_allclose(columns, [0.7, 1.0, 1.35, 1.725, 2.1125], atol=1e-5)
    np.testing.assert_allclose(speeds, [0.2, 0.3, 0.35, 0.375, 0.3875], atol=1e-6)


def test_an_episode_with_dense_rewards(env, play):
    # What is left: 2 cells at the start; then 2 (still in the first cell), 1.5, 1.15, 1 (one cell to go) and 0.
    history = play(env, at((0.5, 0.5), (0.5, 2.5)), EAST)
    rewards = [step.reward.item() for _, step in history]

    assert env.longest_path == 20
    np.testing.assert_allclose(rewards, [0, 0.5 / 20, 0.35 / 20, 0.15 / 20, 1 / 20 + 1], atol=1e-5)
    assert [bool(step.success) for _, step in history] == [False, False, False, False, True]
    assert [bool(step.terminated) for _, step in history] == [False, False, False, False, True]


def test_an_episode_with_sparse_rewards(sparse, play):
    history = play(sparse, at((0.5, 0.5), (0.5, 2.5)), EAST)
    assert [step.reward.item() for _, step in history] == [0, 0, 0, 0, 1]


def test_the_way_leads_around_both_walls():
    # (0,0) to (2,5): 7 moves; on to (3,1): 5; on to (4,1) and (6,6): 1 + 2 + 5.
    paths = all_shortest_paths(parse_map(MAP))

    assert paths[0, 0, 2, 5] == 7
    assert paths[0, 0, 3, 1] == 12
    assert paths[0, 0, 6, 6] == 20
    assert np.isinf(paths[0, 0, 2, 0])  # a wall


def test_a_wall_stops_the_motion_towards_it_and_not_along_it(env, play):
    ((state, _),) = play(env, at((1.9, 2.5)), pushes((1.0, 1.0)))  # the wall is row 2, columns 0 to 4

    np.testing.assert_allclose(state.position, [[1.9, 2.7]], atol=1e-6)
    np.testing.assert_allclose(state.velocity, [[0.0, 0.2]], atol=1e-6)


def test_a_wall_to_the_side_stops_the_other_motion(env, play):
    ((state, _),) = play(env, at((2.5, 5.1)), pushes((1.0, -1.0)))  # in the gap; the wall ends at column 5

    np.testing.assert_allclose(state.position, [[2.7, 5.1]], atol=1e-6)
    np.testing.assert_allclose(state.velocity, [[0.2, 0.0]], atol=1e-6)


def test_the_corner_of_a_wall_cannot_be_cut(env, play):
    # Downwards is free and to the left is free, but both at once would end inside the wall.
    ((state, _),) = play(env, at((1.9, 5.1)), pushes((1.0, -1.0)))

    np.testing.assert_allclose(state.position, [[2.1, 5.1]], atol=1e-6)


@pytest.mark.parametrize(
    ("position", "push"),
    [((0.1, 3.5), (-1.0, 0.0)), ((6.9, 3.5), (1.0, 0.0)), ((0.5, 0.1), (0.0, -1.0)), ((0.5, 6.9), (0.0, 1.0))],
)
def test_the_edge_stops_the_motion(env, play, position, push):
    ((state, _),) = play(env, at(position, (3.5, 3.5)), pushes(push))

    np.testing.assert_allclose(state.position, [position])
    np.testing.assert_array_equal(state.velocity, [[0.0, 0.0]])


def test_pushes_are_limited_to_the_box(env, play):
    ((state, _),) = play(env, at((0.5, 3.5)), pushes((0.0, 50.0)))
    np.testing.assert_allclose(state.position, [[0.5, 3.7]], atol=1e-6)


def test_random_pushes_never_end_inside_a_wall(env):
    states, _ = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 256))

    def one_step(states, key):
        # Full pushes in one of nine directions, kept for a while by momentum: the fastest way into a wall.
        action = jax.random.randint(key, (256, 1, 2), -1, 2).astype(jnp.float32)
        moved, _ = jax.vmap(env.step, in_axes=(None, 0, 0))(key, states, action)
        return moved, moved.position[:, 0]

    keys = jax.random.split(jax.random.key(1), 1000)
    _, positions = jax.jit(lambda s, k: jax.lax.scan(one_step, s, k))(states, keys)
    positions = np.asarray(positions)
    cells = np.floor(positions).astype(int)

    assert positions.min() >= 0
    assert positions.max() < 7
    assert not env.walls[cells[..., 0], cells[..., 1]].any()
    # Walls are one cell thick, so at this speed none is jumped.
    assert (np.abs(np.diff(positions, axis=0)) <= 0.4 + 1e-5).all()
    assert len(np.unique(cells.reshape(-1, 2), axis=0)) == (~env.walls).sum()


def test_the_observation_is_scaled_place_and_velocity(env, play):
    ((_, step),) = play(env, at((3.5, 6.3)), pushes((0.0, 1.0)))

    np.testing.assert_allclose(step.obs, [[0.0, 2 * 6.5 / 7 - 1, 0.0, 0.5]], atol=1e-5)
    np.testing.assert_allclose(step.achieved, [[0.0, 2 * 6.5 / 7 - 1]], atol=1e-5)


def test_episodes_start_off_the_walls_and_out_of_reach_of_the_target(env):
    states, step = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 2048))
    start, target = np.asarray(states.position)[:, 0], np.asarray(states.target)[:, 0]
    for points in (start, target):
        cells = np.floor(points).astype(int)
        assert not env.walls[cells[:, 0], cells[:, 1]].any()

    assert (np.linalg.norm(start - target, axis=-1) >= 0.5).all()
    assert not step.terminated.any()


def test_the_picture_shows_the_point_and_the_walls(env):
    image = env.render(at((0.5, 0.5), (6.5, 6.5)))
    cell = image.shape[0] / 7

    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    assert tuple(image[int(0.5 * cell), int(0.5 * cell)]) == AGENT_COLOURS[0]
    assert tuple(image[int(2.5 * cell), int(0.5 * cell)]) == WALL
    assert (image[int(6 * cell) :, int(6 * cell) :] == AGENT_COLOURS[0]).all(-1).any()


def test_an_argument_that_the_task_does_not_have_is_named():
    with pytest.raises(gw.UserError, match=r"toy/maze.*size"):
        gw.make("toy/maze", size=9)
