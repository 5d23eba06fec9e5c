"""navix: experts win, the observation cell by cell, and every trap of the suite."""

import functools
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs.base import complete

navix = pytest.importorskip("navix")
to_suite = pytest.importorskip("goalward.envs.navix").to_suite
pytestmark = pytest.mark.usefixtures("suite_arithmetic")

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)
EAST, SOUTH, WEST, NORTH = range(4)
AHEAD = ((0, 1), (1, 0), (0, -1), (-1, 0))
WALL, FLOOR = (2, 5, 0), (1, 0, 0)
NUM_EPISODES, NUM_STEPS = 32, 100
WORLDS = ("empty-16x16", "empty-random-16x16", "doorkey-random-16x16", "fourrooms")


class World:
    """A task with its compiled functions, all over a batch of episodes."""

    def __init__(self, name, **arguments):
        self.env = gw.make(f"navix/{name}", **arguments)
        self.start = jax.jit(jax.vmap(self.env.reset))
        self.run = jax.jit(jax.vmap(self._run))

    def _run(self, state, actions):
        def one_step(state, action):
            moved, step = self.env.step(jax.random.key(0), state, action[None])
            return moved, (moved, step)

        return jax.lax.scan(one_step, state, actions)[1]


@pytest.fixture(scope="module")
def world():
    """Returns a function from a name to its world, made once."""
    return functools.cache(World)


@pytest.fixture(scope="module")
def random_run(world):
    """Returns a function from a name to (first state, states and steps after each action, actions), all [E, ...]."""

    @functools.cache
    def run(name):
        first, _ = world(name).start(keys())
        actions = np.random.default_rng(0).integers(0, 7, (NUM_EPISODES, NUM_STEPS)).astype(np.int32)
        return jax.device_get((first, *world(name).run(first, actions), actions))

    return run


@pytest.fixture(scope="module")
def expert_run(world):
    """Returns a function from a name to (first state, states and steps, length of each plan)."""

    @functools.cache
    def run(name):
        first, _ = world(name).start(keys())
        plans = [plan(episode(first, i)) for i in range(NUM_EPISODES)]
        padded = np.full((NUM_EPISODES, NUM_STEPS), DONE, np.int32)
        for row, actions in zip(padded, plans, strict=True):
            row[: len(actions)] = actions
        return jax.device_get((first, *world(name).run(first, padded), [len(actions) for actions in plans]))

    return run


@pytest.fixture(scope="module")
def door(world):
    """A DoorKey state whose parts are where the tests want them."""
    state = episode(world("doorkey-random-16x16").start(keys())[0], 0)
    return put(
        state, wall=[(r, 6) for r in range(1, 15) if r != 4], door=(4, 6), key=(2, 3), goal=(8, 10), player=(2, 2)
    )


def keys(seed=0, number=NUM_EPISODES):
    return jax.random.split(jax.random.key(seed), number)


def episode(states, *index):
    return jax.tree.map(lambda x: np.asarray(x)[index], states)


def put(state, heading=None, **places):
    """Returns the state with things moved to other cells."""
    entities = dict(state.entities)
    for name, cells in places.items():
        where = jnp.asarray(cells, jnp.int32).reshape(-1, 2)
        assert where.shape == entities[name].position.shape
        entities[name] = entities[name].replace(position=where)
    if heading is not None:
        entities["player"] = entities["player"].replace(direction=jnp.asarray([heading], jnp.int32))
    return state._replace(entities=entities)


def moves(*actions):
    return [np.array([action], np.int32) for action in actions]


def place(state, name="player"):
    return tuple(np.asarray(state.entities[name].position)[0].tolist())


def plan(state):
    """Returns the shortest actions that fetch the key and open the door, where there are any, and reach the goal."""
    blocked = {tuple(cell) for cell in np.argwhere(state.grid != 0)}
    if "wall" in state.entities:
        blocked |= {tuple(cell) for cell in state.entities["wall"].position}
    pose, actions, goal = (*place(state), int(state.entities["player"].direction[0])), [], place(state, "goal")
    if "door" in state.entities:
        for name, act in (("key", PICK_UP), ("door", TOGGLE)):
            thing = place(state, name)
            in_the_way = {place(state, "door")} | ({thing} if name == "key" else set())
            way, pose = search(pose, blocked | in_the_way, lambda p, thing=thing: ahead(p) == thing)
            actions += [*way, act]
    if pose[:2] == goal:  # it counts when entered
        way, pose = search(pose, blocked, lambda p: p[:2] != goal)
        actions += way
    way, _ = search(pose, blocked, lambda p: p[:2] == goal)
    return actions + way


def ahead(pose):
    row, col, heading = pose
    return row + AHEAD[heading][0], col + AHEAD[heading][1]


def search(pose, blocked, is_found):
    """Returns the actions of a shortest way to a pose that is found, and that pose."""
    queue, seen = deque([(pose, [])]), {pose}
    while True:
        pose, actions = queue.popleft()
        if is_found(pose):
            return actions, pose
        row, col, heading = pose
        turned = ((LEFT, (row, col, (heading - 1) % 4)), (RIGHT, (row, col, (heading + 1) % 4)))
        walked = () if ahead(pose) in blocked else ((FORWARD, (*ahead(pose), heading)),)
        for action, after in (*turned, *walked):
            if after not in seen:
                seen.add(after)
                queue.append((after, [*actions, action]))


def seen_by_hand(state):
    """Returns [7, 7, 3], the crop of one state, drawn cell by cell."""
    height, width = state.grid.shape
    board = {(r, c): WALL if state.grid[r, c] else FLOOR for r in range(height) for c in range(width)}
    things = state.entities
    for cell in things["wall"].position if "wall" in things else ():
        board[tuple(cell)] = WALL
    board[place(state, "goal")] = (8, 1, 0)
    if "door" in things:
        is_open, is_locked = bool(things["door"].open[0]), things["door"].requires[0] != -1
        board[place(state, "door")] = (4, 4, 0 if is_open else 1 + is_locked)
        row, col = place(state, "key")
        board[row, col % width] = (5, 4, 0)
    row, col, heading = *place(state), int(things["player"].direction[0])
    board[row, col] = FLOOR
    crop = np.zeros((7, 7, 3))
    for up in range(7):
        for aside in range(-3, 4):
            down, right = AHEAD[heading], AHEAD[(heading + 1) % 4]
            cell = (row + up * down[0] + aside * right[0], col + up * down[1] + aside * right[1])
            crop[6 - up, 3 + aside] = board.get(cell, WALL)
    return crop


def first_end(steps):
    """Returns [E], the number of the step that terminated each episode; NUM_STEPS where none did."""
    return np.where(steps.terminated.any(1), steps.terminated.argmax(1), NUM_STEPS)


@pytest.mark.parametrize("name", WORLDS)
def test_an_expert_wins_every_episode(expert_run, name):
    first, states, steps, lengths = expert_run(name)
    ends = first_end(steps)

    assert ends.tolist() == [length - 1 for length in lengths]
    for i, end in enumerate(ends):
        assert steps.success[i, end]
        assert not steps.success[i, :end].any()
        np.testing.assert_array_equal(steps.achieved[i, end], steps.goal[i, end])
        assert place(episode(states, i, end)) == place(episode(first, i), "goal")
    if name == "empty-16x16":
        assert set(lengths) == {27}


def test_the_step_that_ends_an_episode_returns_the_terminal_state(expert_run):
    _, states, steps, lengths = expert_run("doorkey-random-16x16")
    for i, length in enumerate(lengths):
        before, after = episode(states, i, length - 2), episode(states, i, length - 1)
        assert np.abs(np.subtract(place(after), place(before))).sum() == 1
        assert place(after, "goal") == place(before, "goal") == place(after)
        assert after.entities["door"].open[0]
        np.testing.assert_allclose(steps.obs[i, length - 1, 0, 147:149] * 16, place(after), atol=1e-5)


def test_the_suite_swallows_the_action_after_an_end_and_the_adapter_does_not(play):
    suite = navix.make("Navix-Empty-5x5-v0")
    way = (FORWARD, FORWARD, RIGHT, FORWARD, FORWARD)
    timestep = jax.jit(suite.reset)(jax.random.key(0))
    step = jax.jit(suite.step)
    for action in way:
        timestep = step(timestep, jnp.int32(action))
    assert int(timestep.step_type) == 2
    timestep = step(timestep, jnp.int32(LEFT))
    assert (int(timestep.t), timestep.state.get_player().position.tolist()) == (0, [1, 1])

    env = gw.make("navix/empty-16x16", env_id="Navix-Empty-5x5-v0")
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    history = play(env, state, moves(*way, LEFT))
    assert [bool(step.terminated) for _, step in history] == [False] * 4 + [True, False]
    assert place(history[-1][0]) == (3, 3)
    assert int(history[-1][0].entities["player"].direction[0]) == EAST


def test_the_dynamics_are_the_suites_own(random_run):
    suite = navix.make("Navix-DoorKey-Random-16x16-v0", observation_fn=navix.observations.none)
    _, states, steps, actions = random_run("doorkey-random-16x16")

    def run(key, actions):
        def one_step(timestep, action):
            timestep = suite._step(timestep, action)
            return timestep, (timestep.state.entities, timestep.step_type)

        return jax.lax.scan(one_step, suite.reset(key), actions)[1]

    entities, step_type = jax.device_get(jax.jit(jax.vmap(run))(keys(), actions))
    terminated = np.cumsum(step_type == 2, axis=1) == 1
    assert (states.entities["key"].position[:, -1] == (0, -1)).all(-1).any()  # some fetched the key
    assert set(entities) == set(states.entities)
    for ours, theirs in zip(jax.tree.leaves(states.entities), jax.tree.leaves(entities), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(steps.terminated, terminated)


@pytest.mark.parametrize("name", ["doorkey-random-16x16", "fourrooms"])
def test_the_observation_is_the_crop_and_the_pose(expert_run, random_run, name):
    for states, steps in (expert_run(name)[1:3], random_run(name)[1:3]):
        for i in range(0, NUM_EPISODES, 4):
            for t in range(0, NUM_STEPS, 9):
                state, obs = episode(states, i, t), steps.obs[i, t, 0]
                player = state.entities["player"]
                crop = seen_by_hand(state) / (10, 5, 2)
                pose = [*player.position[0] / np.array(state.grid.shape), *np.eye(4)[player.direction[0]]]
                if "door" in state.entities:
                    pose += [player.pocket[0] == 3, state.entities["door"].open[0]]
                np.testing.assert_allclose(obs, [*crop.ravel(), *pose], atol=1e-6)


def test_the_crop_equals_the_suites_first_person_view(random_run, expert_run):
    first_person = jax.jit(jax.vmap(lambda s: navix.observations.symbolic_first_person(to_suite(s))))
    for states, steps in (random_run("doorkey-random-16x16")[1:3], expert_run("doorkey-random-16x16")[1:3]):
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), states)
        crop = np.asarray(first_person(flat)) / (10, 5, 2)
        np.testing.assert_allclose(steps.obs.reshape(-1, 155)[:, :147], crop.reshape(-1, 147), atol=1e-6)


def test_make_gives_horizon_100_and_the_full_grid_where_the_adapter_gives_its_own(world):
    suite = navix.make("Navix-Empty-16x16-v0")
    assert suite.max_steps == 100
    assert suite.observation_space.shape == (16, 16, 3)

    env = gw.make("navix/empty-16x16", append_pose=False, max_steps=7)
    _, step = jax.jit(env.reset)(jax.random.key(0))
    assert (env.spec.max_steps, env.spec.obs_dim, step.obs.shape) == (7, 147, (1, 147))
    assert not complete(env.spec, step, jnp.int32(6)).truncated
    assert complete(env.spec, step, jnp.int32(7)).truncated
    assert world("empty-16x16").env.spec.max_steps == 100


def test_the_crop_has_no_pose_so_it_is_appended(world, play):
    env = world("empty-16x16").env
    state = episode(world("empty-16x16").start(keys())[0], 0)
    ((_, here),) = play(env, put(state, player=(7, 7), heading=WEST), moves(DONE))
    ((_, there),) = play(env, put(state, player=(8, 7), heading=NORTH), moves(DONE))

    np.testing.assert_array_equal(here.obs[0, :147], there.obs[0, :147])
    np.testing.assert_allclose(here.obs[0, 147:], [7 / 16, 7 / 16, 0, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(there.obs[0, 147:], [8 / 16, 7 / 16, 0, 0, 0, 1], atol=1e-6)


def test_the_crop_sees_through_walls_and_a_closed_door(world, door, play):
    state = put(door, player=(8, 5), heading=EAST)
    ((_, step),) = play(world("doorkey-random-16x16").env, state, moves(DONE))
    crop = np.asarray(step.obs[0, :147]).reshape(7, 7, 3)

    np.testing.assert_allclose(crop[5, 3], np.divide(WALL, (10, 5, 2)))
    np.testing.assert_allclose(crop[1, 3], np.divide((8, 1, 0), (10, 5, 2)), atol=1e-6)


def test_the_crop_hides_a_held_key_so_it_is_appended(world, door, play):
    env = world("doorkey-random-16x16").env
    away = play(env, put(door, heading=EAST, key=(12, 3)), moves(PICK_UP))[0][1]
    state, taken = play(env, put(door, heading=EAST), moves(PICK_UP))[0]

    np.testing.assert_array_equal(taken.obs[0, :147], away.obs[0, :147])
    assert (away.obs[0, 153], taken.obs[0, 153]) == (0, 1)
    ((_, opened),) = play(env, put(state, player=(4, 5), heading=EAST), moves(TOGGLE))
    assert opened.obs[0, 153:].tolist() == [1, 1]


def test_a_held_key_is_parked_in_the_corner_of_the_map(world, door, play):
    env = world("doorkey-random-16x16").env
    ((state, _),) = play(env, put(door, heading=EAST), moves(PICK_UP))
    assert place(state, "key") == (0, -1)

    # The suite reads the column -1 as the last one: the top right corner shows a key.
    ((_, step),) = play(env, put(state, player=(2, 14), heading=NORTH), moves(DONE))
    crop = np.asarray(step.obs[0, :147]).reshape(7, 7, 3)
    np.testing.assert_allclose(crop[4, 4], [0.5, 0.8, 0.0], atol=1e-6)


def test_some_random_episodes_start_on_the_goal_which_counts_when_re_entered(play):
    env = gw.make("navix/empty-random-16x16", env_id="Navix-Empty-Random-6x6-v0")
    states, steps = jax.jit(jax.vmap(env.reset))(keys(number=1024))
    on_goal = np.all(states.entities["player"].position == states.entities["goal"].position, axis=(1, 2))
    assert 0.5 / 16 < on_goal.mean() < 2.0 / 16  # both cells are drawn from the same 16
    assert not steps.success.any()
    assert not steps.terminated.any()

    state = put(episode(states, int(on_goal.argmax())), player=(2, 2), goal=(2, 2), heading=EAST)
    history = play(env, state, moves(LEFT, RIGHT, TOGGLE, FORWARD, LEFT, LEFT, FORWARD))
    assert [bool(step.success) for _, step in history] == [False] * 6 + [True]
    assert [bool(step.terminated) for _, step in history] == [False] * 6 + [True]
    reached = [bool((step.achieved == step.goal).all()) for _, step in history]
    assert reached == [True, True, True, False, False, False, True]  # the exception to "target reached, solved"


def test_a_key_that_lies_on_the_goal_makes_no_win(world, door, play):
    env = world("doorkey-random-16x16").env
    ((state, _),) = play(env, put(door, heading=EAST), moves(PICK_UP))
    state = put(state, player=(8, 9), heading=EAST)
    history = play(env, state, moves(DROP, FORWARD, PICK_UP, FORWARD))

    assert place(history[0][0], "key") == (8, 10) == place(history[0][0], "goal")
    assert place(history[1][0]) == (8, 9)  # the key blocks the way, and the suite counts the attempt as an arrival
    suite = to_suite(history[0][0])
    assert navix.events.on_goal_reached(navix.actions.forward(suite))
    assert [bool(step.success) for _, step in history] == [False, False, False, True]
    assert [bool(step.terminated) for _, step in history] == [False, False, False, True]


def test_events_do_not_outlive_their_step(world, play):
    env = world("empty-16x16").env
    state = episode(world("empty-16x16").start(keys())[0], 0)
    history = play(env, put(state, heading=NORTH), moves(FORWARD, RIGHT, FORWARD, LEFT, FORWARD))
    assert [bool(state.hit_wall) for state, _ in history] == [True, False, False, False, True]


def test_the_suite_writes_into_its_argument_which_is_a_copy_of_ours(door):
    suite = to_suite(door)
    navix.actions.rotate_cw(suite)
    assert suite.get_player().direction == door.entities["player"].direction[0] + 1


@pytest.mark.parametrize("name", WORLDS)
def test_a_step_returns_the_types_of_a_start_down_to_weak_ones(world, name):
    env = world(name).env
    start, _ = jax.eval_shape(env.reset, jax.random.key(0))
    after, _ = jax.eval_shape(env.step, jax.random.key(0), start, jnp.zeros(1, jnp.int32))
    assert jax.tree.leaves(after) == jax.tree.leaves(start)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(start))


@pytest.mark.parametrize("name", WORLDS)
def test_the_state_is_small_and_holds_no_pictures(random_run, name):
    first = random_run(name)[0]
    assert sum(leaf[0].nbytes for leaf in jax.tree.leaves(first)) < 1024


def test_layouts_differ_between_keys(random_run):
    first = random_run("doorkey-random-16x16")[0].entities
    for name, least in (("player", 10), ("key", 10), ("goal", 10), ("door", 10)):
        assert len({tuple(cell) for cell in first[name].position[:, 0].tolist()}) > least
    assert set(first["player"].direction[:, 0].tolist()) == {EAST, SOUTH, WEST, NORTH}
    assert len({tuple(cell) for cell in random_run("fourrooms")[0].entities["goal"].position[:, 0].tolist()}) > 10
    fixed = random_run("empty-16x16")[0].entities
    assert (fixed["player"].position == 1).all()
    assert (fixed["goal"].position == 14).all()


def test_lava_ends_an_episode_without_success(play):
    env = gw.make("navix/empty-16x16", env_id="Navix-LavaGapS5-v0")
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    ((state, step),) = play(env, put(state, player=(1, 1), lava=[(1, 2), (2, 2)], heading=EAST), moves(FORWARD))
    assert place(state) == (1, 2)
    assert step.terminated
    assert not step.success


def test_balls_move_by_the_key_of_the_step():
    env = gw.make("navix/empty-16x16", env_id="Navix-Dynamic-Obstacles-6x6-v0")
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    action = jnp.array([DONE])
    moved, _ = jax.jit(jax.vmap(lambda key: env.step(key, state, action)))(jnp.concatenate([keys(), keys()]))
    places = np.asarray(moved.entities["ball"].position)
    np.testing.assert_array_equal(places[:NUM_EPISODES], places[NUM_EPISODES:])
    assert len(np.unique(places, axis=0)) > 5


def test_other_ids_have_names_of_their_own_and_grids_need_not_be_square():
    env = gw.make("navix/empty-16x16", env_id="Navix-DistShift1-v0")
    assert env.spec.name == "navix/Navix-DistShift1-v0"
    state, step = jax.jit(env.reset)(jax.random.key(0))
    np.testing.assert_allclose(step.goal, [[1 / 7, 7 / 9]])
    assert env.render(state).shape == (192, 192, 3)


def test_the_picture_changes_with_the_state(world, door, play):
    env = world("doorkey-random-16x16").env
    history = play(env, put(door, heading=EAST), moves(PICK_UP, RIGHT))
    opened = put(history[0][0], player=(4, 5), heading=EAST)
    pictures = [
        env.render(state)
        for state in (door, *(s for s, _ in history), *(s for s, _ in play(env, opened, moves(TOGGLE))))
    ]

    assert all(picture.dtype == np.uint8 and picture.shape == (192, 192, 3) for picture in pictures)
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)
    assert tuple(pictures[0][8 * 12 + 6, 10 * 12 + 6]) == (0, 158, 115)  # the goal's cell
    assert tuple(pictures[0][4 * 12 + 1, 6 * 12 + 1]) == (230, 159, 0)  # the closed door
    assert tuple(pictures[3][4 * 12 + 6, 6 * 12 + 6]) != (230, 159, 0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"env_id": "Navix-Empty-17x17-v0"}, r"Unknown env_id of Navix: 'Navix-Empty-17x17-v0'\. Did you mean Navix-"),
        ({"env_id": "Navix-GoToDoor-5x5-v0"}, r"must name a task with a goal cell .*found Navix-GoToDoor-5x5-v0"),
        ({"env_id": "Navix-KeyCorridorS3R1-v0"}, r"must name a task with a goal cell .*found Navix-KeyCorridorS3R1"),
        ({"append_pose": 1}, r"append_pose of navix/empty-16x16 must be true or false; found 1\."),
        ({"max_steps": 0}, r"max_steps of navix/empty-16x16 must be a whole number of at least 1; found 0\."),
    ],
)
def test_wrong_arguments_are_explained(arguments, sentence):
    with pytest.raises(gw.UserError, match=sentence):
        gw.make("navix/empty-16x16", **arguments)
