"""Goals of connector: values by hand, and the target is reached exactly when the episode is won."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("jumanji")

import goalward as gw
from goalward.envs.base import advance_episode, is_over, start_episode
from goalward.envs.connector import ConnectorState
from goalward.envs.tasks import TASKS
from goalward.envs.uniform import uniform_policy
from goalward.goals.connector import AllConnected, Distance, TargetPositions, TotalDistance

pytestmark = pytest.mark.usefixtures("suite_arithmetic")

GOALS = (Distance, TotalDistance, AllConnected, TargetPositions)


@pytest.fixture(scope="module")
def env():
    return gw.make("connector/5x5x3a", grid_size=4, num_agents=2)


@pytest.fixture(scope="module")
def episodes(env):
    """Returns 64 episodes [E, T + 1, ...] of random allowed moves; the step that ends an episode is repeated."""
    policy = uniform_policy(env)

    def one_step(episode, key):
        step = episode.step
        moved = advance_episode(env, key, episode, policy(key, step.obs, step.goal, step.action_mask))
        kept = jax.tree.map(lambda a, b: jnp.where(is_over(step), a, b), episode, moved)
        return kept, kept

    def one_episode(key):
        first = start_episode(env, key)
        _, rest = jax.lax.scan(one_step, first, jax.random.split(key, env.spec.max_steps))
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)

    return jax.jit(jax.vmap(one_episode))(jax.random.split(jax.random.key(0), 64))


def somewhere(position, target):
    grid = jnp.zeros((5, 5), jnp.int32)  # goals do not look at it
    return ConnectorState(grid, jnp.array(position), jnp.array(target), jnp.ones((len(position), 5), bool))


@pytest.mark.parametrize("goal", GOALS)
def test_the_target_is_reached_exactly_when_the_episode_is_won(goal, env, episodes):
    def per_state(function):
        return np.asarray(jax.vmap(jax.vmap(function))(episodes.state))

    achieved, target = per_state(goal(env).achieved), per_state(goal(env).target)
    reached = np.isclose(achieved, target, atol=1e-6).all((-1, -2))
    won = np.asarray(episodes.step.success)

    assert won[:, -1].any()
    assert not won[:, -1].all()
    np.testing.assert_array_equal(reached, won)
    np.testing.assert_array_equal(target, np.broadcast_to(target[:, :1], target.shape))


@pytest.mark.parametrize("goal", [Distance, TargetPositions])
def test_an_agent_reaches_its_own_target_exactly_when_it_connects(goal, env, episodes):
    achieved = jax.vmap(jax.vmap(goal(env).achieved))(episodes.state)
    target = jax.vmap(jax.vmap(goal(env).target))(episodes.state)

    np.testing.assert_array_equal(np.isclose(achieved, target, atol=1e-6).all(-1), ~episodes.step.active)


# On 5 x 5 the longest way is 8. Agent 0 has 3 + 1 moves to go, agent 1 none, agent 2 has 2.
BOARD = somewhere([(0, 0), (2, 2), (4, 4)], [(3, 1), (2, 2), (4, 2)])


@pytest.mark.parametrize(
    ("goal", "achieved", "target"),
    [
        ("distance", [[4 / 8], [0], [2 / 8]], [[0], [0], [0]]),
        ("total_distance", [[6 / 24]] * 3, [[0]] * 3),
        ("all_connected", [[1 / 3]] * 3, [[1]] * 3),
        ("target_positions", [[0, 0], [0.5, 0.5], [1, 1]], [[0.75, 0.25], [0.5, 0.5], [1, 0.5]]),
    ],
)
def test_a_board_by_hand(goal, achieved, target):
    env = gw.make("connector/5x5x3a", goal=goal)

    np.testing.assert_allclose(env.goal.achieved(BOARD), achieved, atol=1e-6)
    np.testing.assert_allclose(env.goal.target(BOARD), target, atol=1e-6)
    assert env.goal.achieved(BOARD).dtype == env.goal.target(BOARD).dtype == jnp.float32
    assert env.spec.goal_dim == len(achieved[0])


def test_opposite_corners_are_at_distance_one():
    env = gw.make("connector/5x5x3a")
    state = somewhere([(0, 0), (4, 0), (0, 4)], [(4, 4), (0, 4), (4, 0)])

    np.testing.assert_allclose(env.goal.achieved(state), 1.0)


@pytest.mark.parametrize("agents", [3, 5, 10, 23])
def test_a_complete_team_of_any_size_has_reached_the_target(agents):
    state = somewhere([(1, 1)] * agents, [(1, 1)] * agents)
    goal = AllConnected(None)

    np.testing.assert_allclose(jax.jit(goal.achieved)(state), goal.target(state), atol=1e-6)


def test_the_table_names_these_goals_and_distance_is_the_default():
    names = [goal.name for goal in GOALS]

    assert all(list(task.goals) == names for task in TASKS.values() if task.suite == "connector")
    assert gw.make("connector/5x5x3a").spec.goal_name == "distance"
