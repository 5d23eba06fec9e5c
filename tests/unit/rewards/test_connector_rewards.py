"""Rewards of connector: an episode by hand, and where they part from the suite's own."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("jumanji")

from jumanji.environments.routing.connector.reward import DenseRewardFn, SparseRewardFn
from jumanji.environments.routing.connector.types import Agent, State

import goalward as gw
from goalward.envs.connector import ConnectorState
from goalward.envs.tasks import TASKS
from goalward.rewards.connector import Dense, NegativeDistance, OnConnection, Sparse

pytestmark = pytest.mark.usefixtures("suite_arithmetic")

STAY, UP, RIGHT, DOWN, LEFT = range(5)
# Two agents on 4 x 4. Agent 0 is two moves from its target, agent 1 three; agent 1 first wastes a step.
START = {"position": [(0, 0), (3, 0)], "target": [(0, 2), (3, 3)]}
ACTIONS = [(RIGHT, STAY), (RIGHT, RIGHT), (STAY, RIGHT), (STAY, RIGHT)]
DISTANCES = [(2, 3), (1, 3), (0, 2), (0, 1), (0, 0)]


@pytest.fixture(scope="module")
def episode():
    """Returns the states and rewards of the episode, the reward being `dense`."""
    env = gw.make("connector/5x5x3a", grid_size=4, num_agents=2)
    step = jax.jit(env.step)
    grid = jnp.zeros((4, 4), jnp.int32).at[0, 0].set(2).at[3, 0].set(5).at[0, 2].set(3).at[3, 3].set(6)
    state = ConnectorState(
        grid, jnp.array(START["position"]), jnp.array(START["target"]), jnp.zeros((2, 5), bool).at[:, 0].set(True)
    )
    state, _ = step(jax.random.key(0), state, jnp.array([STAY, STAY]))  # fills in the mask
    states, rewards = [state], []
    for action in ACTIONS:
        state, shown = step(jax.random.key(0), state, jnp.array(action))
        states.append(state)
        rewards.append(shown.reward)
    assert shown.success
    return states, np.array(rewards)


def paid(reward, states):
    """Returns [T, N], what each step of the episode pays."""
    steps = zip(states, ACTIONS, states[1:], strict=False)
    return np.array([reward(state, jnp.array(action), after) for state, action, after in steps])


def in_the_suite(state):
    agents = Agent(id=jnp.arange(2), start=state.position, target=state.target, position=state.position)
    return State(grid=state.grid, step_count=0, agents=agents, key=None, action_mask=state.allowed)


def test_the_episode_is_the_one_drawn_above(episode):
    assert [tuple(state.distance.tolist()) for state in episode[0]] == DISTANCES


@pytest.mark.parametrize(
    ("reward", "team"),
    [
        (Dense, [-0.06, 1 - 0.03, -0.03, 1]),  # nobody; agent 0 connects; agent 1 is left; agent 1 connects
        (NegativeDistance, [-4, -2, -1, 0]),
        (OnConnection, [0, 1, 0, 1]),
        (Sparse, [0, 0, 0, 2]),  # +1 for each of the two agents
    ],
)
def test_an_episode_by_hand_pays_everyone_the_sum_over_the_team(reward, team, episode):
    rewards = paid(reward(None), episode[0])

    assert rewards.dtype == np.float32
    np.testing.assert_allclose(rewards, np.array([team, team]).T, atol=1e-6)


def test_the_environment_pays_the_chosen_reward(episode):
    states, rewards = episode

    np.testing.assert_allclose(rewards, paid(Dense(None), states), atol=1e-6)


def test_trap_dense_of_the_suite_pays_0_97_on_connecting(episode):
    before, after = (in_the_suite(state) for state in episode[0][1:3])
    theirs = DenseRewardFn()(before, None, after)

    np.testing.assert_allclose(theirs, [0.97, -0.03], atol=1e-6)
    np.testing.assert_allclose(paid(Dense(None), episode[0])[1], 1.0 - 0.03, atol=1e-6)


def test_trap_sparse_of_the_suite_is_on_connection_here(episode):
    states = [in_the_suite(state) for state in episode[0]]
    theirs = [np.sum(SparseRewardFn()(a, None, b)) for a, b in itertools.pairwise(states)]

    np.testing.assert_allclose(paid(OnConnection(None), episode[0])[:, 0], theirs)
    assert not np.allclose(paid(Sparse(None), episode[0])[:, 0], theirs)


def test_nothing_is_paid_for_a_connection_twice(episode):
    last = episode[0][-1]

    for reward in (Dense, OnConnection, Sparse, NegativeDistance):
        np.testing.assert_array_equal(reward(None)(last, jnp.array([STAY, STAY]), last), 0.0)


def test_the_table_names_these_rewards_and_dense_is_the_default():
    names = [reward.name for reward in (Dense, NegativeDistance, OnConnection, Sparse)]

    assert all(list(task.rewards) == names for task in TASKS.values() if task.suite == "connector")
    assert gw.make("connector/5x5x3a").spec.reward_name == "dense"
