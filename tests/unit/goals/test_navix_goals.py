"""Goals of navix: the target is reached when, and only when, the task is solved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw

pytest.importorskip("navix")
pytestmark = pytest.mark.usefixtures("suite_arithmetic")

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)
EAST, SOUTH, WEST, NORTH = range(4)
NUM_EPISODES, NUM_STEPS = 512, 100


@pytest.fixture(scope="module")
def doorkey():
    """A room of 5 x 5, small enough for random actions to find key, door and goal."""
    env = gw.make("navix/doorkey-random-16x16", env_id="Navix-DoorKey-Random-5x5-v0")
    return env, jax.jit(env.step), random_episodes(env)


@pytest.fixture(scope="module")
def empty():
    env = gw.make("navix/empty-random-16x16", env_id="Navix-Empty-Random-5x5-v0")
    return env, random_episodes(env)


def random_episodes(env):
    """Returns (first state, first step, states, steps) of random actions, [E, ...] and [E, T, ...]."""

    def run(key):
        def one_step(state, key):
            moved, step = env.step(key, state, jax.random.randint(key, (1,), 0, 7))
            return moved, (moved, step)

        key_start, key_steps = jax.random.split(key)
        first, shown = env.reset(key_start)
        return first, shown, *jax.lax.scan(one_step, first, jax.random.split(key_steps, NUM_STEPS))[1]

    return jax.device_get(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), NUM_EPISODES)))


def until_the_end(steps):
    """Returns [E, T] bool, the steps up to the one that ends the episode."""
    ended_before = np.cumsum(steps.terminated, axis=1) - steps.terminated
    return ended_before == 0


def laid_out(first, heading, **places):
    """Returns the first state of the first episode with things moved to other cells."""
    state = jax.tree.map(lambda x: x[0], first)
    entities = dict(state.entities)
    for name, cells in places.items():
        entities[name] = entities[name].replace(position=jnp.array(cells).reshape(-1, 2))
    entities["player"] = entities["player"].replace(direction=jnp.array([heading]))
    return state._replace(entities=entities)


def distance(a, b):
    return np.abs(np.asarray(a) - np.asarray(b)).sum()


def test_progress_is_one_if_and_only_if_solved(doorkey):
    _, first, _, steps = doorkey[2]
    live = until_the_end(steps)
    reached = steps.achieved[..., 0, 0] == 1.0

    assert steps.success[live].sum() > 10
    np.testing.assert_array_equal(reached[live], steps.success[live])
    np.testing.assert_array_equal(steps.terminated[live], steps.success[live])
    assert not (first.achieved == 1.0).any()
    assert (steps.goal == 1.0).all()
    assert steps.achieved.min() >= 0.0
    assert steps.achieved[live & ~steps.success].max() <= 1 - 1 / 8


def test_progress_by_hand(doorkey):
    _, _, states, steps = doorkey[2]
    for i in range(0, NUM_EPISODES, 8):
        for t in range(0, NUM_STEPS, 7):
            things = jax.tree.map(
                lambda x, i=i, t=t: x[i, t, 0], {k: v for k, v in states.entities.items() if k != "wall"}
            )
            player, key, door = things["player"], things["key"], things["door"]
            carried = player.position if player.pocket == 3 else key.position
            left = 0 if door.open else distance(carried, door.position)
            left += distance(player.position, things["goal"].position)
            np.testing.assert_allclose(steps.achieved[i, t], [[1 - left / (2 * (2 + 2))]], atol=1e-6)
    assert states.entities["door"].open.any()
    assert (states.entities["player"].pocket == 3).any()


def test_progress_of_an_episode(doorkey):
    env, step, (first, *_) = doorkey
    state = laid_out(first, NORTH, player=(2, 1), key=(1, 1), door=(3, 2), goal=(1, 3), wall=[(1, 2), (2, 2)])
    # Key to door 3 and player to goal 3; the longest way between inner cells is 4.
    np.testing.assert_allclose(env.goal.achieved(state), [[1 - (3 + 3) / 8]])
    expected = [
        (PICK_UP, 2 + 3),  # the key is where the player is
        (FORWARD, 3 + 2),
        (DROP, 3 + 2),  # against a wall
        (RIGHT, 3 + 2),
        (RIGHT, 3 + 2),
        (DROP, 3 + 2),  # onto the floor; the pocket stays full
        (TOGGLE, 3 + 2),
        (PICK_UP, 3 + 2),
        (FORWARD, 2 + 3),
        (FORWARD, 1 + 4),
        (LEFT, 1 + 4),
        (TOGGLE, 0 + 4),  # the door is open
        (TOGGLE, 0 + 4),  # and stays so
        (FORWARD, 0 + 3),
        (FORWARD, 0 + 2),
        (LEFT, 0 + 2),
        (FORWARD, 0 + 1),
        (FORWARD, 0),
    ]
    for action, left in expected:
        state, shown = step(jax.random.key(0), state, jnp.array([action]))
        np.testing.assert_allclose(shown.achieved, [[1 - left / 8]], atol=1e-6)
        assert bool(shown.success) == (left == 0)


def test_a_dropped_key_still_opens_the_door(doorkey):
    _, step, (first, *_) = doorkey
    state = laid_out(first, SOUTH, player=(1, 1), key=(2, 1), door=(1, 2), wall=[(2, 2), (3, 2)])
    for action in (PICK_UP, DROP, LEFT, TOGGLE):
        state, _ = step(jax.random.key(0), state, jnp.array([action]))
    assert state.entities["key"].position.tolist() == [[2, 1]]
    assert state.entities["player"].pocket.tolist() == [3]
    assert state.entities["door"].open.tolist() == [True]


def test_the_position_is_the_goals_if_and_only_if_solved_unless_it_was_from_the_start(empty):
    first, _, _, steps = empty[1]
    live = until_the_end(steps)
    reached = (steps.achieved == steps.goal).all((-1, -2))
    started_there = (first.entities["player"].position == first.entities["goal"].position).all((1, 2))
    # An episode that starts on the goal is like any other once the player has left.
    has_left = ~started_there[:, None] | (np.cumsum(~reached, axis=1) > 0)

    assert steps.success[live].sum() > NUM_EPISODES / 2
    np.testing.assert_array_equal((reached & has_left)[live], steps.success[live])
    np.testing.assert_array_equal(steps.terminated[live], steps.success[live])
    assert 0.5 / 9 < started_there.mean() < 2.0 / 9  # both cells are drawn from the same 9


def test_positions_are_cells_over_the_size_of_the_grid(empty):
    first, shown, states, steps = empty[1]
    np.testing.assert_allclose(shown.achieved, first.entities["player"].position / 5, atol=1e-6)
    np.testing.assert_allclose(steps.achieved, states.entities["player"].position / 5, atol=1e-6)
    np.testing.assert_allclose(
        steps.goal, np.repeat(first.entities["goal"].position[:, None] / 5, NUM_STEPS, 1), atol=1e-6
    )
    assert len(np.unique(shown.goal, axis=0)) == 9


def test_progress_is_refused_where_there_is_no_key_and_door():
    with pytest.raises(
        gw.UserError, match=r"'progress' needs a task with one key and one door; found Navix-FourRooms-v0"
    ):
        gw.make("navix/doorkey-random-16x16", env_id="Navix-FourRooms-v0")
