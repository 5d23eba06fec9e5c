"""jaxgcrl: formulas of the suite in NumPy on real physics, Brax's own wrappers beside the adapter, trap by trap."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs.imports import quiet_import

with quiet_import():
    pytest.importorskip("brax")
    from brax.envs.wrappers import training

    from goalward.envs.jaxgcrl.ant import ant_skeleton

pytestmark = pytest.mark.usefixtures("suite_arithmetic")

TASKS = ("jaxgcrl/reacher", "jaxgcrl/ant", "jaxgcrl/ant-u-maze")
BRAX_STEPS = 25  # of an episode under Brax's wrappers; enough for speeds at which every force counts
WALL_AT = 2.0  # metres; where the outer wall of the maze begins, below its first free row


class Rig(NamedTuple):
    """A task whose programs are compiled once for all tests."""

    env: object
    first: tuple  # states and time steps [E, ...]
    full: object  # Brax's whole states of the same starts, if asked for
    actions: np.ndarray  # [E, T, 1, A]
    play: object  # (states, actions) -> states and time steps [E, T + 1, ...], the first among them
    random: tuple  # what that gives for `first` and `actions`


def rig(name, num_envs, num_steps, with_full=False):
    env = gw.make(name, max_steps=num_steps)

    def one(state, actions):
        def one_step(state, action):
            state, shown = env.step(jax.random.key(0), state, action)
            return state, (state, shown)

        return jax.lax.scan(one_step, state, actions)[1]

    compiled = jax.jit(jax.vmap(one))

    def play(first, actions):
        later = compiled(first[0], actions)
        return jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[:, None], b], 1), first, later)

    start = jax.jit(jax.vmap(lambda key: (env.reset(key), env.physics.first(key) if with_full else None)))
    first, full = start(jax.random.split(jax.random.key(0), num_envs))
    actions = np.random.default_rng(0).uniform(-1, 1, (num_envs, num_steps, 1, env.spec.action_space.size))
    actions = actions.astype(np.float32)
    return Rig(env, first, full, actions, play, play(first, actions))


@pytest.fixture(scope="module")
def reacher():
    return rig("jaxgcrl/reacher", 32, 100)


@pytest.fixture(scope="module")
def ant():
    return rig("jaxgcrl/ant", 6, 10, with_full=True)


@pytest.fixture(scope="module")
def maze():
    return rig("jaxgcrl/ant-u-maze", 6, 10)


@pytest.fixture(params=TASKS)
def any_rig(request):
    return request.getfixturevalue({"reacher": "reacher", "ant": "ant", "ant-u-maze": "maze"}[request.param[8:]])


def tip_of(q):
    """The arm's tip in NumPy."""
    elbow = q[..., 0] + q[..., 1]
    x = 0.1 * np.cos(q[..., 0]) + 0.11 * np.cos(elbow)
    y = 0.1 * np.sin(q[..., 0]) + 0.11 * np.sin(elbow)
    return np.stack([x, y, np.full_like(x, 0.01)], -1)


def shifted(state, *, position=(0, 0, 0), velocity=(0, 0, 0)):
    """A state of the ant with all its links moved and pushed; the target stays."""
    is_ant = np.ones((10, 1), np.float32)
    is_ant[-1] = 0
    physics = state.physics
    physics = physics.replace(
        q=physics.q.at[..., :3].add(jnp.array(position, jnp.float32)),
        x_i=physics.x_i.replace(pos=physics.x_i.pos + is_ant * np.array(position, np.float32)),
        xd_i=physics.xd_i.replace(vel=physics.xd_i.vel + is_ant * np.array(velocity, np.float32)),
    )
    return state._replace(physics=physics, position=state.position + jnp.array(position[:2], jnp.float32))


def test_the_reacher_observes_joints_and_tip(reacher):
    states, steps = reacher.random
    q, qd = states.physics.q, states.physics.qd
    obs = steps.obs[:, :, 0]

    np.testing.assert_allclose(obs[..., :2], np.cos(q[..., :2]), atol=1e-5)
    np.testing.assert_allclose(obs[..., 2:4], np.sin(q[..., :2]), atol=1e-5)
    np.testing.assert_allclose(obs[..., 4:7], tip_of(q), atol=1e-5)
    # Computed twice; XLA may round the last bit differently.
    np.testing.assert_allclose(steps.achieved[:, :, 0], obs[..., 4:7], rtol=0, atol=3e-8)
    assert np.ptp(q[:, -1, 0]) > 0.5  # the arms did move
    # The suite adds the turn of the forearm as if the forearm always pointed along x.
    elbow_speed = 0.1 * qd[..., :1] * np.stack([-np.sin(q[..., 0]), np.cos(q[..., 0])], -1)
    turn = 0.11 * (qd[..., 0] + qd[..., 1])
    np.testing.assert_allclose(obs[..., 7], elbow_speed[..., 0], atol=1e-4)
    np.testing.assert_allclose(obs[..., 8], elbow_speed[..., 1] + turn, atol=1e-4)
    np.testing.assert_allclose(obs[..., 9], 0.0, atol=1e-5)


def test_the_reachers_tip_velocity_is_not_quite_one(reacher):
    states, steps = reacher.random
    true = (tip_of(states.physics.q[:, 1:]) - tip_of(states.physics.q[:, :-1]))[..., 0] / 0.02
    seen = steps.obs[:, 1:, 0, 7]

    assert np.abs(true - seen).max() > 1.0  # metres per second; it is the observation of the suite all the same


@pytest.mark.parametrize("robot", ["ant", "maze"])
def test_the_ant_observes_torso_and_joints(robot, request):
    states, steps = request.getfixturevalue(robot).random
    obs, links = steps.obs[:, :, 0], states.physics.x_i

    np.testing.assert_allclose(obs[..., :3], links.pos[:, :, 0], atol=1e-4)
    np.testing.assert_allclose(np.abs((obs[..., 3:7] * links.rot[:, :, 0]).sum(-1)), 1.0, atol=1e-4)
    np.testing.assert_array_equal(obs[..., 7:15], states.physics.q[..., 7:15])
    np.testing.assert_allclose(obs[..., 15:18], states.physics.xd_i.vel[:, :, 0], atol=1e-4)
    # The torso turns in its own frame: Rodrigues' rotation back by the quaternion (w, u).
    w, u, spin = links.rot[:, :, 0, :1], -links.rot[:, :, 0, 1:], states.physics.xd_i.ang[:, :, 0]
    turned = spin + 2 * w * np.cross(u, spin) + 2 * np.cross(u, np.cross(u, spin))
    np.testing.assert_allclose(obs[..., 18:21], turned, atol=1e-4)
    np.testing.assert_array_equal(obs[..., 21:], states.physics.qd[..., 6:14])
    np.testing.assert_array_equal(steps.achieved[:, :, 0], obs[..., :2])
    # Joints are at the angles that the thighs and shins show: a shin's middle lies between its knee and its foot.
    for at in np.ndindex(obs.shape[:2]):
        _, legs, _ = ant_skeleton(states.physics.q[at], 1.0)
        # Springs hold the ant together, so in motion joints give way by some centimetres.
        np.testing.assert_allclose(links.pos[at][2:10:2], legs[:, 2:].mean(1), atol=0.15 if at[1] else 1e-4)


def test_rewards_and_success_are_the_suites_formulas(any_rig):
    env = any_rig.env
    states, steps = any_rig.random
    distance = np.sqrt(((states.position - states.target) ** 2).sum(-1))[..., 0]
    if env.spec.name == "jaxgcrl/reacher":
        expected = -distance[:, 1:]
        fallen = np.zeros(distance.shape, bool)
    else:
        effort = 0.5 * (any_rig.actions[:, :, 0] ** 2).sum(-1)
        expected = 10 * (distance[:, :-1] - distance[:, 1:]) / 0.05 + 1.0 - effort
        fallen = (steps.obs[:, :, 0, 2] < 0.2) | (steps.obs[:, :, 0, 2] > 1.0)

    np.testing.assert_allclose(steps.reward[:, 1:, 0], expected, atol=2e-3)
    np.testing.assert_array_equal(steps.success, (distance < env.reach) & ~fallen)
    np.testing.assert_array_equal(steps.terminated, fallen)


def test_metrics_count_the_steps_at_the_goal(any_rig):
    env, (states, _), _, actions, play, _ = any_rig
    final = any_rig.random[0].position[:, -1]
    states = states._replace(target=jnp.asarray(final))  # physics does not know of the target in the state
    states, steps = play((states, any_rig.first[1]), actions)

    for episode in range(len(final)):
        count = 0
        for t in range(1, actions.shape[1] + 1):
            gap = states.position[episode, t, 0] - final[episode, 0]
            count += np.sqrt((gap**2).sum()) < env.reach
            assert steps.metrics["success_any"][episode, t] == (count > 0)
            np.testing.assert_allclose(steps.metrics["time_at_goal"][episode, t], count / t, atol=1e-6)
    assert steps.metrics["success_any"][:, -1].all()
    assert not steps.metrics["success_any"][:, 0].any()


def test_success_any_of_a_random_reacher_is_high_while_success_is_low(reacher):
    # After the full thousand steps it is 1.00 against 0.10.
    _, steps = reacher.random

    assert steps.metrics["success_any"][:, -1].mean() > 0.6
    assert steps.success[:, 50:].mean() < 0.2
    assert steps.success[:, -1].mean() < 0.25


def test_a_fall_ends_the_episode_and_is_no_success(ant):
    state = shifted(ant.first[0], position=(0, 0, 0.9))
    state = state._replace(target=state.position)
    states, steps = ant.play((state, ant.first[1]), 0 * ant.actions)

    assert (steps.obs[:, 1, 0, 2] > 1.0).all()
    assert steps.terminated[:, 1].all()
    assert not steps.success[:, 1].any()
    assert (np.linalg.norm(states.position - states.target, axis=-1)[:, 1] < 0.5).all()  # it fell at its goal
    assert steps.metrics["success_any"][:, 1].all()
    assert not ant.random[1].terminated.any()


@pytest.mark.parametrize(
    ("height", "fallen"), [(0.19, True), (0.21, False), (0.99, False), (1.01, True), (np.nan, True)]
)
def test_a_torso_is_upright_between_20_centimetres_and_a_metre(ant, height, fallen):
    full = ant.first[0].physics.replace(q=jnp.zeros(17).at[2].set(height))

    assert bool(ant.env.physics.has_fallen(full)) == fallen


def test_physics_that_comes_apart_ends_the_episode_with_finite_numbers(ant):
    states, shown = ant.first
    broken = states._replace(physics=states.physics.replace(q=jnp.full_like(states.physics.q, jnp.nan)))
    _, steps = ant.play((broken, shown), ant.actions)

    assert steps.terminated[:, 1].all()
    assert not steps.success[:, 1:].any()
    for values in (steps.obs, steps.achieved, steps.goal, steps.reward):
        assert np.isfinite(values).all()


def test_position_is_reached_when_and_only_when_the_task_is_solved(any_rig):
    env, (states, shown), _, actions, play, (states_then, steps_then) = any_rig
    # Half the episodes get a target just within reach of where they end, the others one just beyond.
    share = np.where(np.arange(len(actions)) % 2, 0.95, 1.05)[:, None, None]
    aside = np.eye(env.spec.goal_dim, dtype=np.float32)[0] * env.reach * share
    states = states._replace(target=jnp.asarray(states_then.position[:, -1] + aside, jnp.float32))
    _, steps = play((states, shown), actions)
    near = np.linalg.norm(steps.achieved - steps.goal, axis=-1)[..., 0] < env.reach

    np.testing.assert_array_equal(steps.success[:, 1:], near[:, 1:] & ~steps.terminated[:, 1:])
    np.testing.assert_array_equal(near[:, -1], share[:, 0, 0] < 1)
    np.testing.assert_array_equal(steps.obs, steps_then.obs)  # the target in the state does not touch the physics


def test_the_target_does_not_drift(any_rig):
    states, steps = any_rig.random
    target = states.physics.q[..., -2:]

    np.testing.assert_allclose(target, np.broadcast_to(target[:, :1], target.shape), atol=1e-6)
    np.testing.assert_allclose(steps.goal[:, :, 0, :2], target, atol=1e-6)
    np.testing.assert_allclose(steps.goal[:, :, 0, 2:], 0.01, atol=1e-6)  # the height, where there is one
    np.testing.assert_array_equal(steps.goal, np.broadcast_to(steps.goal[:, :1], steps.goal.shape))


def test_starts_differ_and_are_where_the_suite_puts_them(reacher, ant, maze):
    arms, ants, mazes = (robot.first[0].physics.q for robot in (reacher, ant, maze))

    assert np.abs(arms[:, :2]).max() <= 0.1
    assert np.abs(ants[:, :2]).max() <= 0.1
    np.testing.assert_array_equal(mazes[:, :2], np.full((6, 2), 4.0))
    for q in (ants, mazes):
        assert np.abs(q[:, 2] - 0.55).max() <= 0.1
        assert np.abs(np.abs(q[:, 8:15:2]) - 1.0).max() <= 0.1
        np.testing.assert_allclose(np.linalg.norm(q[:, 3:7], axis=-1), 1.0, atol=1e-5)
    for q in (arms, ants, mazes):
        assert len(np.unique(q[:, 7 if q.shape[1] == 17 else 0])) == len(q)


@pytest.fixture(scope="module")
def wrapped_reacher(reacher):
    """Three short episodes under Brax's training wrappers: observations [E, 1 + T, 13] and dones [E, 1 + T]."""
    wrapped = training.wrap(reacher.env.physics, episode_length=BRAX_STEPS)
    keys = jax.vmap(jax.random.key_data)(jax.random.split(jax.random.key(0), 32))

    @jax.jit
    def run(keys, actions):
        first = wrapped.reset(keys)

        def one_step(state, action):
            state = wrapped.step(state, action)
            return state, (state.obs, state.done)

        _, later = jax.lax.scan(one_step, first, actions)
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), (first.obs, first.done), later)

    return jax.tree.map(
        lambda x: np.swapaxes(x, 0, 1), run(keys, reacher.actions[:, : 3 * BRAX_STEPS, 0].swapaxes(0, 1))
    )


def test_brax_auto_reset_replays_the_first_state_and_ours_draws_new_ones(reacher, wrapped_reacher):
    obs, done = wrapped_reacher
    for t in (BRAX_STEPS, 2 * BRAX_STEPS, 3 * BRAX_STEPS):
        assert done[:, t].all()
        np.testing.assert_array_equal(obs[:, t], obs[:, 0])  # start, goal and all; the terminal state is lost

    _, steps = reacher.random
    later = np.abs(steps.obs[:, BRAX_STEPS] - steps.obs[:, 0])
    assert later.max(-1).min() > 0.1  # ours goes on from the state it is in
    assert len(np.unique(steps.goal[:, 0, 0], axis=0)) == 32  # and every reset has a target of its own


def test_brax_wrappers_see_the_same_physics(reacher, wrapped_reacher):
    # This compares the small state with Brax's whole one, too.
    obs, _ = wrapped_reacher
    _, steps = reacher.random

    np.testing.assert_allclose(obs[:, :BRAX_STEPS, :10], steps.obs[:, :BRAX_STEPS, 0], atol=1e-3)
    np.testing.assert_allclose(obs[:, :BRAX_STEPS, 10:], steps.goal[:, :BRAX_STEPS, 0], atol=1e-6)


def test_what_the_small_state_leaves_out_changes_nothing(ant):
    physics = ant.env.physics

    @jax.jit
    @jax.vmap
    def run(full, actions):
        def one_step(full, action):
            full = physics.pipeline_step(full, action)
            return full, (physics.observe(full), physics.target(full))

        return jax.lax.scan(one_step, full, actions)[1]

    obs, target = run(ant.full, ant.actions[:, :, 0])
    _, steps = ant.random

    np.testing.assert_allclose(obs[:, :3], steps.obs[:, 1:4, 0], atol=1e-4)
    np.testing.assert_allclose(obs, steps.obs[:, 1:, 0], atol=2e-3)
    np.testing.assert_allclose(target, steps.goal[:, 1:, 0], atol=1e-6)


@pytest.mark.parametrize(("robot", "numbers"), [("reacher", 173), ("ant", 169), ("maze", 169)])
def test_the_state_is_small(robot, numbers, request):
    state = request.getfixturevalue(robot).first[0]

    assert sum(leaf[0].size for leaf in jax.tree.leaves(state)) == numbers  # Brax's own: 241 and 663


def test_walls_stop_the_ant(ant, maze):
    # A metre from the wall, thrown at it; on the open plane the same ant goes on.
    thrown = shifted(maze.first[0], position=(-1.0, 0, 0.1), velocity=(-6.0, 0, 0))
    in_maze, _ = maze.play((thrown, maze.first[1]), 0 * maze.actions)
    in_open, _ = ant.play((thrown, ant.first[1]), 0 * ant.actions)

    assert in_open.position[:, -1, 0, 0].max() < WALL_AT
    assert in_maze.position[:, :, 0, 0].min() > WALL_AT + 0.2  # the torso's radius is 0.25
    np.testing.assert_allclose(in_maze.position[:, 1, 0, 1], in_open.position[:, 1, 0, 1], atol=0.1)


def test_pictures_change_with_the_state(any_rig):
    states, _ = any_rig.random
    images = [any_rig.env.render(jax.tree.map(lambda x, t=t: x[0, t], states)) for t in (0, -1)]
    moved = any_rig.env.render(jax.tree.map(lambda x: x[1, 0], states)._replace(target=states.position[1, 0]))

    assert all(image.dtype == np.uint8 and image.shape == (192, 192, 3) for image in images)
    assert (images[0] != images[1]).any()
    assert (images[0] != moved).any()


def test_the_picture_has_the_x_axis_down_and_the_y_axis_to_the_right(maze):
    state = jax.tree.map(lambda x: x[0], maze.first[0])._replace(target=np.array([[12.0, 4.0]]))
    image = maze.env.render(state).astype(int)
    is_target = (np.abs(image - (213, 94, 0)).sum(-1) < 30).nonzero()
    is_robot = (np.abs(image - (0, 114, 178)).sum(-1) < 30).nonzero()

    assert is_target[0].mean() > 110 > 80 > is_target[1].mean()  # below the ant, in the first column
    assert is_robot[0].mean() < 80 > is_robot[1].mean()
