"""jaxnav: the suite's own steps, what robots see, who has won, and which targets can be reached."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("jaxmarl")

import goalward as gw
from goalward.envs.base import Episode, advance_episode, complete
from goalward.envs.draw import AGENT_COLOURS, WALL
from goalward.envs.jaxnav import JaxNavState, Suite, reachability

pytestmark = [
    pytest.mark.usefixtures("suite_arithmetic"),
    pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning"),
    pytest.mark.filterwarnings("ignore:max_dist_to_goal:UserWarning"),
]

AGENTS, SIZE, STEPS = 4, 11, 42
REFERENCE = {"map_size": (SIZE, SIZE), "fill": 0.6, "sample_test_case_type": "grid", "valid_path_check": False}
EMPTY = np.pad(np.zeros((SIZE - 2, SIZE - 2), bool), 1, constant_values=True)
FULL_SPEED = (1.0, 0.0)
DIAGONAL = math.hypot(SIZE, SIZE)
NUM_STARTS = 200

# Robot 0 drives over its target towards a wall, robot 1 into a wall, 2 and 3 into each other.
START = JaxNavState(
    position=np.array([(6.5, 2.5), (5.5, 8.5), (2.5, 5.5), (4.5, 5.5)], np.float32),
    heading=np.array([0.0, math.pi / 2, 0.0, math.pi - 1e-3], np.float32),
    velocity=np.zeros((AGENTS, 2), np.float32),
    target=np.array([(7.5, 2.5), (2.5, 8.5), (8.5, 5.5), (1.5, 5.5)], np.float32),
    reached=np.zeros(AGENTS, bool),
    crashed=np.zeros(AGENTS, bool),
    near=np.zeros(AGENTS, bool),
    walls=EMPTY,
)
# In the first episode all drive; in the second, robot 1 turns on the spot, so the episode goes on.
ALL_DRIVE, ONE_STAYS = 0, 1
ACTIONS = np.array([[FULL_SPEED] * AGENTS, [FULL_SPEED, (0.0, 0.3), FULL_SPEED, FULL_SPEED]], np.float32)


@pytest.fixture(scope="module")
def env():
    return gw.make("jaxnav/4-agents")


@pytest.fixture(scope="module")
def suite_env():
    return Suite(num_agents=AGENTS, goal_radius=0.3, map_params=REFERENCE)


@pytest.fixture(scope="module")
def episodes(env, suite_env):
    """Returns the two episodes [2, T, ...] as ours and as the suite's (observations, states, rewards, dones).

    The step that ends an episode is repeated. The suite's own lidar is at work in the second.
    """

    def one_step(carry, action):
        ours, theirs = carry
        key = jax.random.key(0)
        actions = dict(zip(suite_env.agents, action, strict=True))
        obs, state, rewards, dones, _ = suite_env.step_env(key, theirs[1], actions)
        by_agent = [jnp.stack([x[a] for a in suite_env.agents]) for x in (obs, rewards)]
        moved = advance_episode(env, key, ours, action), (by_agent[0], state, by_agent[1], dones["__all__"])
        kept = jax.tree.map(lambda a, b: jnp.where(ours.step.terminated, a, b), (ours, theirs), moved)
        return kept, kept

    def one_episode(start, action):
        _, shown = env.step(jax.random.key(0), start, jnp.zeros((AGENTS, 2)))
        ours = Episode(start, complete(env.spec, shown, jnp.int32(0)), jnp.int32(0))
        full = jax.tree.map(jnp.asarray, env.to_suite(start))
        theirs = jnp.zeros((AGENTS, 205)), full, jnp.zeros(AGENTS), jnp.zeros((), bool)
        return jax.lax.scan(one_step, (ours, theirs), jnp.tile(action[None], (STEPS, 1, 1)))[1]

    starts = jax.tree.map(lambda x: jnp.stack([x, x]), START)
    return jax.device_get(jax.jit(jax.vmap(one_episode))(starts, ACTIONS))


def first_time(flags):
    """Returns [N], the first step, counted from 1, after which a flag [T, N] is set."""
    return (np.argmax(flags, axis=0) + 1).tolist()


def seen_by(robot, state):
    """Returns the 204 numbers that a robot sees, beam by beam."""
    spacing, samples = 6.0 / 119, np.linspace(0.0, 6.0, 120)
    x, y = state.position[robot]
    ranges = []
    for angle in state.heading[robot] + np.linspace(-np.pi, np.pi, 200):
        along = np.array([math.cos(angle), math.sin(angle)])
        hits = [119]
        for k, distance in enumerate(samples):
            if state.walls[int(y + distance * along[1]), int(x + distance * along[0])]:
                hits.append(k)
                break
        for other in set(range(AGENTS)) - {robot}:
            gap = distance_to_hull((x, y), along, state.position[other], state.heading[other])
            if gap <= 6.0:
                hits.append(int(gap / 0.05))  # the suite's resolution, a little finer than its samples
        ranges.append(min(hits) * spacing / 6.0 - 0.5)
    way = state.target[robot] - state.position[robot]
    bearing = (math.atan2(way[1], way[0]) - state.heading[robot] + math.pi) % (2 * math.pi) - math.pi
    speed, turn = state.velocity[robot]
    return [*ranges, speed - 0.5, turn / 0.6, min(math.hypot(*way), 6.0) / 6.0 - 0.5, bearing / math.pi]


def distance_to_hull(start, along, centre, heading):
    """Returns where a ray meets the square of half a metre around `centre`; infinite if it does not."""
    turn = np.array([[math.cos(heading), math.sin(heading)], [-math.sin(heading), math.cos(heading)]])
    origin, direction = turn @ (np.array(start) - centre), turn @ along
    with np.errstate(divide="ignore"):
        enters, leaves = np.sort([(-0.25 - origin) / direction, (0.25 - origin) / direction], axis=0)
    return enters.max() if 0 <= enters.max() <= leaves.min() else math.inf


def test_every_step_is_the_suites_own_up_to_the_end(episodes):
    ours, (obs, state, rewards, done) = episodes

    np.testing.assert_allclose(ours.state.position, state.pos, atol=1e-6)
    np.testing.assert_allclose(ours.state.heading, state.theta, atol=1e-6)
    np.testing.assert_allclose(ours.state.velocity, state.vel, atol=1e-6)
    np.testing.assert_array_equal(ours.state.reached, state.goal_reached)
    np.testing.assert_array_equal(ours.state.crashed, state.move_term)
    np.testing.assert_array_equal(ours.step.terminated, done)
    np.testing.assert_allclose(ours.step.reward, rewards, atol=1e-6)
    np.testing.assert_allclose(ours.step.obs, obs[..., :204], atol=1e-6)
    assert len(np.unique(ours.step.reward)) > 20


def test_the_last_number_of_the_suites_observation_is_constant_and_left_out(episodes, env):
    ours, (obs, *_) = episodes

    assert env.spec.obs_dim == ours.step.obs.shape[-1] == 204
    np.testing.assert_array_equal(obs[..., 204], 0.0)


def test_the_observation_is_what_a_loop_over_beams_sees(episodes):
    ours = episodes[0]
    state = jax.tree.map(lambda x: x[ONE_STAYS, 7], ours.state)
    expected = np.array([seen_by(robot, state) for robot in range(AGENTS)])
    off = np.abs(ours.step.obs[ONE_STAYS, 7] - expected)

    assert off[:, 200:].max() < 1e-5
    assert (off[:, :200] > 1e-5).sum() <= 2  # a beam that grazes a corner may go either way
    assert (expected[2, :200] < -0.2).any()  # robot 3 is in sight


def test_on_random_maps_the_lidar_is_the_suites(env, suite_env, starts):
    states, _ = starts
    some = jax.tree.map(lambda x: jnp.asarray(x[:2]), states)
    theirs, ours = (
        jax.jit(jax.vmap(lambda state, e=e: e._get_obs(env.to_suite(state))))(some) for e in (suite_env, env.suite)
    )

    np.testing.assert_array_equal(theirs, ours)


def test_a_driver_that_turns_and_goes_reaches_every_target_on_an_empty_map():
    env = gw.make("jaxnav/4-agents", num_agents=1, fill=0.0)
    state, shown = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 8))
    step = jax.jit(jax.vmap(env.step, in_axes=(None, 0, 0)))
    over = np.zeros(8, bool)
    for _ in range(250):
        bearing = np.asarray(shown.obs[..., -1]) * np.pi
        speed = np.where((np.abs(bearing) < 0.3) & ~over[:, None], 1.0, 0.0)
        state, shown = step(
            jax.random.key(0), state, jnp.stack([speed, np.clip(2 * bearing, -np.pi / 6, np.pi / 6)], -1)
        )
        over |= np.asarray(shown.terminated)
        if over.all():
            break

    assert env.spec.name == "jaxnav/1-agent"
    assert not state.walls[:, 1:-1, 1:-1].any()
    assert shown.success.all()
    assert not state.crashed.any()


def test_robots_that_have_arrived_or_crashed_are_inactive(episodes):
    ours = episodes[0]

    np.testing.assert_array_equal(ours.step.active, ~(ours.state.reached | ours.state.crashed))
    np.testing.assert_array_equal(ours.step.success, ours.state.reached)
    assert ours.step.active[ONE_STAYS, -1].tolist() == [False, True, False, False]


def test_the_episode_ends_when_the_last_robot_has_arrived_or_crashed(episodes):
    ours = episodes[0]
    ended = first_time(ours.step.terminated[ALL_DRIVE][:, None])[0]

    assert first_time(~ours.step.active[ALL_DRIVE])[1] == ended  # robot 1 is the last
    assert not ours.step.terminated[ONE_STAYS].any()
    assert ours.step.success[ALL_DRIVE, -1].tolist() == [True, False, False, False]
    assert not ours.step.metrics["team_success"][ALL_DRIVE, -1]
    assert ours.step.metrics["crashed"][ALL_DRIVE, -1] == pytest.approx(3 / 4)


def test_the_team_has_won_when_all_have_arrived(env, play):
    state = START._replace(position=START.target - np.float32(0.1))
    ((_, shown),) = play(env, state, [np.zeros((AGENTS, 2), np.float32)])

    assert shown.success.all()
    assert shown.metrics["team_success"]
    assert shown.terminated


def test_a_robot_that_has_crashed_stands_still_and_is_an_obstacle(episodes):
    ours = episodes[0]
    after = first_time(ours.state.crashed[ONE_STAYS])[2]

    np.testing.assert_array_equal(
        ours.state.position[ONE_STAYS, after - 1 :, 2],
        np.tile(ours.state.position[ONE_STAYS, -1, 2], (STEPS - after + 1, 1)),
    )
    assert first_time(ours.state.crashed[ONE_STAYS])[3] == after


def test_trap_arrived_agents_keep_moving_and_may_crash(episodes):
    ours = episodes[0]
    arrived, crashed = (first_time(x[ONE_STAYS])[0] for x in (ours.state.reached, ours.state.crashed))

    assert arrived < crashed < STEPS
    assert ours.state.position[ONE_STAYS, -1, 0, 0] - ours.state.position[ONE_STAYS, arrived, 0, 0] > 1.0
    assert ours.step.success[ONE_STAYS, -1, 0]  # what is won stays won
    assert ours.step.achieved[ONE_STAYS, -1, 0, 0] * DIAGONAL > 2.0


def test_trap_crashed_agents_keep_paying_the_proximity_penalty(episodes):
    ours, (_, _, rewards, _) = episodes
    late = slice(
        first_time(ours.state.crashed[ONE_STAYS])[0], None
    )  # robot 0 stands at the wall, 2 and 3 at each other

    assert ours.state.near[ONE_STAYS, late][:, [0, 2, 3]].all()
    # Their own is -0.1 each, robot 1 pays -0.01 for its time; half is the own, half the mean.
    mean = (3 * -0.1 - 0.01) / 4
    np.testing.assert_allclose(
        rewards[ONE_STAYS, late],
        [[0.5 * own + 0.5 * mean for own in (-0.1, -0.01, -0.1, -0.1)]] * (STEPS - late.start),
        atol=1e-6,
    )


def test_trap_observed_distance_clips_at_6_metres(env, play):
    state = START._replace(target=START.target.copy())
    state.target[0] = (1.5, 9.5)
    ((_, shown),) = play(env, state, [np.zeros((AGENTS, 2), np.float32)])

    assert float(shown.obs[0, 202]) == pytest.approx(0.5)
    assert float(shown.achieved[0, 0]) == pytest.approx(math.hypot(5, 7) / DIAGONAL, abs=1e-6)


def test_trap_defaults_differ_from_the_reference(env):
    theirs = Suite()

    assert (theirs.num_agents, theirs.goal_radius, theirs.map_obj.fill) == (2, 0.5, 0.3)
    assert (env.suite.num_agents, env.suite.goal_radius, env.suite.map_obj.fill) == (4, 0.3, 0.6)
    assert theirs.map_obj.sample_test_case_type.name == "RANDOM"
    assert env.suite.map_obj.sample_test_case_type.name == "GRID"
    assert env.spec.max_steps == 500


def test_trap_observations_that_are_not_normalised_break_the_suite():
    with pytest.raises(UnboundLocalError, match="rew_lambda"):
        jax.eval_shape(Suite(normalise_obs=False, lidar_num_beams=4).reset, jax.random.key(0))


def test_trap_the_terminal_achieved_goal_is_lost_by_the_suites_own_step(env, play):
    """After `step`, the suite is on the next map; ours is the state in which the episode ended."""
    state = START._replace(position=START.target - np.float32(0.1))
    still = np.zeros((AGENTS, 2), np.float32)
    ((ended, shown),) = play(env, state, [still])
    actions = dict(zip(env.suite.agents, still, strict=True))
    _, theirs, _, dones, _ = env.suite.step(jax.random.key(0), jax.tree.map(jnp.asarray, env.to_suite(state)), actions)

    assert dones["__all__"]
    assert shown.terminated
    np.testing.assert_array_equal(ended.target, state.target)
    assert not np.array_equal(theirs.goal, state.target)
    assert float(shown.achieved.max()) * DIAGONAL < 0.3


@pytest.fixture(scope="module")
def starts(env):
    """Returns the states and time steps of many starts."""
    return jax.device_get(jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), NUM_STARTS)))


def test_episodes_differ_in_map_start_and_target(starts):
    states, _ = starts

    for part in (states.walls, states.position, states.target):
        assert len(np.unique(part.reshape(NUM_STARTS, -1), axis=0)) > 0.9 * NUM_STARTS


def test_nobody_starts_at_its_target_in_a_wall_or_on_another(starts):
    states, shown = starts
    cells = states.position.astype(int)

    assert np.linalg.norm(states.position - states.target, axis=-1).min() > 0.9
    assert not states.walls[np.arange(NUM_STARTS)[:, None], cells[..., 1], cells[..., 0]].any()
    assert all(len(set(map(tuple, team))) == AGENTS for team in cells.tolist())
    assert shown.active.all()
    assert not shown.success.any()


def test_trap_a_quarter_of_the_reference_targets_cannot_be_reached(env, starts):
    states, _ = starts
    reachable = np.array(
        [
            [is_reachable(walls, *ends) for ends in zip(positions, targets, strict=True)]
            for walls, positions, targets in zip(
                states.walls, states.position.astype(int), states.target.astype(int), strict=True
            )
        ]
    )
    ceiling = reachability(env, jax.random.key(0), num_maps=NUM_STARTS)

    assert ceiling == (reachable.mean(), reachable.all(-1).mean())
    assert 0.65 < ceiling.agents < 0.80
    assert 0.43 < ceiling.teams < 0.67


def is_reachable(walls, start, target):
    """Returns whether free cells join two, by depth-first search."""
    seen, stack = set(), [tuple(start)]
    while stack:
        x, y = stack.pop()
        if (x, y) not in seen and not walls[y, x]:
            seen.add((x, y))
            stack += [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]
    return tuple(target) in seen


def test_with_the_path_check_every_target_can_be_reached():
    env = gw.make("jaxnav/4-agents", valid_path_check=True)

    assert reachability(env, jax.random.key(0), num_maps=32) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_agents": 0}, "num_agents of jaxnav must be a whole number of at least 1; found 0."),
        ({"map_size": 4}, "map_size of jaxnav must be a whole number of at least 5; found 4."),
        ({"fill": 1.0}, "fill of jaxnav must be a number from 0 to 0.9; found 1.0."),
        ({"num_agents": 9, "map_size": 5, "fill": 0.0}, "num_agents of jaxnav must be at most 8 with map_size 5"),
        ({"num_agents": 20, "placement": "random"}, "num_agents of jaxnav must be at most 4 with map_size 11"),
        ({"num_agents": 1, "map_size": 5, "valid_path_check": True}, "map_size of jaxnav must be at least 9"),
        ({"goal_radius": 0.0}, "goal_radius of jaxnav must be a number from 0.01 to 11; found 0.0."),
        ({"goal_radius": float("inf")}, "goal_radius of jaxnav must be a number from 0.01 to 11; found inf."),
        ({"fill": "full"}, "fill of jaxnav must be a number from 0 to 0.9; found 'full'."),
        ({"valid_path_check": 3}, "valid_path_check of jaxnav must be true or false; found 3."),
        ({"placement": "gird"}, "Unknown placement of jaxnav 'gird'. Did you mean grid?"),
        ({"max_steps": 0}, "max_steps of jaxnav/4-agents must be a whole number of at least 1; found 0."),
    ],
)
def test_what_cannot_be_is_refused(arguments, sentence):
    with pytest.raises(gw.UserError) as refusal:
        gw.make("jaxnav/4-agents", **arguments)

    assert sentence in str(refusal.value)


def test_the_task_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gw.make("jaxnav/4-agents", num_agents=2, map_size=9, valid_path_check=True)
        state, _ = jax.eval_shape(env.reset, jax.random.key(0))
        jax.eval_shape(env.step, jax.random.key(0), state, jnp.zeros((2, 2)))


def test_the_picture_shows_walls_robots_and_crashes(env):
    image = env.render(START)
    cell = image.shape[0] / SIZE

    def pixel(image, x, y):
        return tuple(int(v) for v in image[int((SIZE - y) * cell), int(x * cell)])

    assert image.dtype == np.uint8
    assert image.shape == (192, 192, 3)
    assert pixel(image, 0.5, 0.5) == WALL
    assert pixel(image, 5.65, 8.4) == AGENT_COLOURS[1]
    moved = START._replace(position=START.position + np.float32(0.5))
    crashed = START._replace(crashed=np.array([True, False, False, False]))
    reached = START._replace(reached=np.array([True, False, False, False]))
    pictures = [env.render(state) for state in (START, moved, crashed, reached)]
    assert all(not np.array_equal(a, b) for i, a in enumerate(pictures) for b in pictures[:i])
