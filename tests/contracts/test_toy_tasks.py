"""What the built-in tasks have in common, beyond the contract: agents that move to targets and stay there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs.base import advance_episode, is_over, start_episode
from goalward.envs.tasks import TASKS
from goalward.envs.uniform import uniform_policy

pytestmark = pytest.mark.usefixtures("strict_dtypes")

TOY = [name for name, task in TASKS.items() if task.suite == "toy"]
DISCRETE = [name for name in TOY if TASKS[name].actions == "discrete"]
TEAMS = [name for name in TOY if TASKS[name].num_agents > 1]
WITH_GOALS = [(name, goal) for name in TOY for goal in TASKS[name].goals]

NUM_EPISODES = 1024
MOST_RANDOM_WINS = 0.30

# In the continuous tasks "there" means nearer than this, in the coordinates of the world.
REACH = {"toy/maze": 0.5, "toy/swarm": 0.35}
# The action that leaves an agent where it is, in discrete team tasks.
STAY = {"toy/routing": 0}


@functools.cache
def random_episodes(name):
    """Returns the environment, and states and time steps [E, T + 1, ...] of uniformly random allowed actions.

    The step that ends an episode is repeated, so "later in the episode" is "later on the axis".
    """
    env = gw.make(name)
    policy = uniform_policy(env)

    def one_step(episode, key):
        key_act, key_step = jax.random.split(key)
        action = policy(key_act, episode.step.obs, episode.step.goal, episode.step.action_mask)
        moved = advance_episode(env, key_step, episode, action)
        kept = jax.tree.map(lambda a, b: jnp.where(is_over(episode.step), a, b), episode, moved)
        return kept, kept

    def one_episode(key):
        key_start, key_run = jax.random.split(key)
        first = start_episode(env, key_start)
        _, rest = jax.lax.scan(one_step, first, jax.random.split(key_run, env.spec.max_steps))
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)

    episodes = jax.jit(jax.vmap(one_episode))(jax.random.split(jax.random.key(1), NUM_EPISODES))
    return env, jax.device_get(episodes.state), jax.device_get(episodes.step)


def achieved_and_target(name, goal):
    """Returns [E, T + 1, N, G] twice, what one of a task's goals makes of the random episodes."""
    env = gw.make(name, goal=goal)
    states = random_episodes(name)[1]
    both = jax.jit(jax.vmap(jax.vmap(lambda state: (env.goal.achieved(state), env.goal.target(state)))))
    return env, *jax.device_get(both(states))


@functools.cache
def some_states(name):
    """Returns the environment, and states and masks [R, ...] drawn from everywhere in the running random episodes."""
    env, states, step = random_episodes(name)
    running = np.argwhere(~(step.terminated | step.truncated))
    rows = np.random.default_rng(0).choice(len(running), 96, replace=False)
    episode, time = running[rows].T
    return env, jax.tree.map(lambda x: jnp.asarray(x[episode, time]), states), step.action_mask[episode, time]


@pytest.mark.parametrize("name", TOY)
def test_shapes_and_types_follow_from_the_spec(name):
    env, _, step = random_episodes(name)
    spec = env.spec
    axes = (NUM_EPISODES, spec.max_steps + 1)
    agents = (*axes, spec.num_agents)
    found = {field: (value.shape, value.dtype.name) for field, value in step._asdict().items() if field != "metrics"}

    assert found == {
        "obs": ((*agents, spec.obs_dim), "float32"),
        "achieved": ((*agents, spec.goal_dim), "float32"),
        "goal": ((*agents, spec.goal_dim), "float32"),
        "terminated": (axes, "bool"),
        "success": (axes, "bool"),
        "truncated": (axes, "bool"),
        "reward": (agents, "float32"),
        "action_mask": ((*agents, spec.action_space.size), "bool"),
        "active": (agents, "bool"),
    }


@pytest.mark.parametrize("name", TOY)
def test_a_step_alone_and_in_a_batch_agree(name):
    env, states, masks = some_states(name)
    keys = jax.random.split(jax.random.key(2), len(masks))
    actions = uniform_policy(env)(keys[0], jnp.zeros((*masks.shape[:2], 1)), None, jnp.asarray(masks))

    batched = jax.jit(jax.vmap(env.step))(keys, states, actions)
    alone = jax.jit(env.step)
    for row in range(4):
        found = alone(keys[row], jax.tree.map(lambda x, row=row: x[row], states), actions[row])
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(batched), strict=True):
            np.testing.assert_allclose(a, b[row], atol=1e-6)


@pytest.mark.parametrize(("name", "goal"), WITH_GOALS)
def test_an_agent_has_arrived_exactly_where_the_achieved_goal_is_the_target(name, goal):
    """Exceptions: "there" is a disc in the continuous tasks, and an agent is never there before its first step."""
    env, achieved, target = achieved_and_target(name, goal)
    gap = (achieved - target)[:, 1:]
    arrived = ~random_episodes(name)[2].active[:, 1:]
    assert arrived.any()
    assert not arrived.all()

    if name not in REACH:
        np.testing.assert_array_equal(arrived, (np.abs(gap) < 1e-6).all(-1))
    elif goal == "position":  # scaled so that the world is 2 wide
        distance = np.linalg.norm(gap * env.extent / 2, axis=-1)
        clear = np.abs(distance - REACH[name]) > 1e-4
        np.testing.assert_array_equal(arrived[clear], (distance < REACH[name])[clear])
    else:  # the Manhattan distance is up to sqrt(2) times the straight one that decides
        manhattan = gap[..., 0] * 2 * env.extent
        assert arrived[manhattan < REACH[name] - 1e-4].all()
        assert (manhattan[arrived] < 2**0.5 * REACH[name] + 1e-4).all()


@pytest.mark.parametrize(("name", "goal"), WITH_GOALS)
def test_a_state_moved_onto_its_target_achieves_the_goal(name, goal):
    env, _, target = achieved_and_target(name, goal)
    state = jax.tree.map(lambda x: x[0, 0], random_episodes(name)[1])

    np.testing.assert_allclose(env.goal.achieved(state._replace(position=state.target)), target[0, 0], atol=1e-6)


@pytest.mark.parametrize(("name", "goal"), WITH_GOALS)
def test_the_target_stays_the_same_within_an_episode(name, goal):
    _, _, target = achieved_and_target(name, goal)

    np.testing.assert_array_equal(target, np.broadcast_to(target[:, :1], target.shape))


@pytest.mark.parametrize("name", TOY)
def test_the_time_step_shows_the_chosen_goal(name):
    _, achieved, target = achieved_and_target(name, next(iter(TASKS[name].goals)))
    step = random_episodes(name)[2]

    np.testing.assert_allclose(step.achieved, achieved, atol=1e-6)
    np.testing.assert_allclose(step.goal, target, atol=1e-6)


@pytest.mark.parametrize("name", TOY)
def test_episodes_start_and_end_in_different_places(name):
    _, states, _ = random_episodes(name)
    starts, targets = (x[:, 0].reshape(NUM_EPISODES, -1) for x in (states.position, states.target))

    assert len(np.unique(starts, axis=0)) > 40
    assert len(np.unique(targets, axis=0)) > 40


@pytest.mark.parametrize("name", TOY)
def test_an_episode_is_solved_exactly_when_every_agent_has_arrived(name):
    _, _, step = random_episodes(name)

    np.testing.assert_array_equal(step.success, ~step.active.any(-1))
    np.testing.assert_array_equal(step.terminated, step.success)


@pytest.mark.parametrize("name", TEAMS)
def test_an_agent_that_has_arrived_stays_inactive_and_in_its_place(name):
    _, states, step = random_episodes(name)
    was_there = ~step.active[:, :-1]

    assert was_there.any()
    assert not step.active[:, 1:][was_there].any()
    np.testing.assert_array_equal(states.position[:, 1:][was_there], states.position[:, :-1][was_there])


@pytest.mark.parametrize("name", TEAMS)
def test_the_rewards_of_an_agent_that_has_arrived_are_zero(name):
    _, _, step = random_episodes(name)
    running = ~(step.terminated | step.truncated)[:, :-1]
    was_there = ~step.active[:, :-1] & running[..., None]

    np.testing.assert_array_equal(step.reward[:, 1:][was_there], 0.0)


@pytest.mark.parametrize("name", DISCRETE)
def test_the_mask_names_the_moves_that_move(name):
    """The others stand still: in a team, a move is masked if it is blocked now, though its cell may be free in time."""
    env, states, masks = some_states(name)
    every_agent, every_choice = jnp.arange(env.spec.num_agents), jnp.arange(env.spec.action_space.num_actions)
    stay = STAY.get(name)

    def moves(state, agent, choice):
        actions = jnp.full(env.spec.num_agents, stay or 0, jnp.int32)
        moved, _ = env.step(jax.random.key(0), state, actions.at[agent].set(choice))
        return jnp.any(moved.position[agent] != state.position[agent])

    by_choice = jax.vmap(moves, in_axes=(None, None, 0))
    by_agent = jax.vmap(by_choice, in_axes=(None, 0, None))
    found = jax.jit(jax.vmap(by_agent, in_axes=(0, None, None)))(states, every_agent, every_choice)
    if stay is not None:
        assert masks[..., stay].all()
        masks = masks & (np.arange(masks.shape[-1]) != stay)

    assert not masks.all()
    np.testing.assert_array_equal(found, masks)


@pytest.mark.parametrize("name", TOY)
def test_random_actions_seldom_win(name):
    _, _, step = random_episodes(name)

    assert (step.terminated | step.truncated)[:, -1].all()
    assert step.success[:, -1].mean() <= MOST_RANDOM_WINS
