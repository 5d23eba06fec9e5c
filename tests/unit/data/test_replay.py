"""Replay: nothing that is drawn crosses the end of an episode or the seam of the ring."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from goalward.data.replay import add, draw, empty_replay, index
from goalward.data.rollout import Rollout
from goalward.envs.base import Discrete, EnvSpec

pytestmark = pytest.mark.usefixtures("strict_dtypes")

LENGTH, ENVS, AGENTS, CAPACITY = 4, 3, 2, 12
MAX_ROLLOUTS = 8  # the ring goes round more than twice
BATCH, GAMMA = 256, 0.8
SPEC = EnvSpec(name="test", obs_dim=2, goal_dim=1, action_space=Discrete(3), max_steps=99, num_agents=AGENTS)


def rollout_of(number, done):
    """Returns rollout `number`, whose observations tell the environment and the step, and goals the step."""
    time = number * LENGTH + np.arange(LENGTH)
    step, env = (x.astype(np.float32) for x in np.meshgrid(time, np.arange(ENVS), indexing="ij"))
    obs = np.stack([step, env], -1)[:, :, None].repeat(AGENTS, 2)
    per_agent = (LENGTH, ENVS, AGENTS)
    return Rollout(
        obs=obs,
        goal=np.zeros((*per_agent, 1), np.float32),
        action_mask=np.ones((*per_agent, 3), bool),
        active=np.ones(per_agent, bool),
        policy_outputs=np.zeros((*per_agent, 3), np.float32),
        action=(10 * obs[..., 0] + np.arange(AGENTS, dtype=np.float32)).astype(np.int32),
        # The goal tells which step and environment and agent it comes from.
        next_achieved=(step[..., None, None] * 100 + env[..., None, None] * 10 + np.arange(AGENTS)[:, None]).astype(
            np.float32
        ),
        reward=np.zeros(per_agent, np.float32),
        terminated=done,
        truncated=np.zeros_like(done),
        success=np.zeros((LENGTH, ENVS), np.float32),
    )


@jax.jit
def remember(rollouts, num_rollouts):
    """Returns the replay after the first `num_rollouts` of stacked rollouts."""
    action = jax.ShapeDtypeStruct((AGENTS,), jnp.int32)
    replay = empty_replay(SPEC, action, ENVS, CAPACITY)
    return jax.lax.fori_loop(
        0, num_rollouts, lambda i, replay: add(replay, jax.tree.map(lambda x: x[i], rollouts)), replay
    )


@jax.jit
def draw_many(replay, key):
    return draw(replay, index(replay), key, BATCH, GAMMA)


@jax.jit
def draw_shuffled(replay, key):
    return draw(replay, index(replay), key, BATCH, GAMMA, shuffled=True)


def filled(num_rollouts, ends):
    """Returns the replay after some rollouts, and for every step of every environment whether an episode ended."""
    done = np.array(ends, bool).reshape(MAX_ROLLOUTS * LENGTH, ENVS)
    rollouts = [rollout_of(i, done[i * LENGTH : (i + 1) * LENGTH]) for i in range(MAX_ROLLOUTS)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *rollouts)
    return remember(stacked, num_rollouts), done


layouts = st.lists(st.booleans(), min_size=MAX_ROLLOUTS * LENGTH * ENVS, max_size=MAX_ROLLOUTS * LENGTH * ENVS)


@given(st.integers(1, MAX_ROLLOUTS), layouts)
def test_goals_come_from_the_same_episode_of_the_same_agent_and_from_what_is_remembered(num_rollouts, ends):
    replay, done = filled(num_rollouts, ends)
    batch = draw_many(replay, jax.random.key(num_rollouts))
    newest = num_rollouts * LENGTH - 1
    oldest = max(0, newest + 1 - CAPACITY)
    step, env = (np.asarray(batch.memory.obs)[:, 0, i].astype(int) for i in (0, 1))
    goal = np.asarray(batch.future_goal)[..., 0].astype(int)

    assert step.min() >= oldest
    assert step.max() <= newest
    for b in range(BATCH):
        for n in range(AGENTS):
            goal_step, goal_env, goal_agent = goal[b, n] // 100, goal[b, n] // 10 % 10, goal[b, n] % 10
            assert (goal_env, goal_agent) == (env[b], n)
            assert step[b] <= goal_step <= newest
            assert not done[step[b] : goal_step, env[b]].any()  # no episode ended on the way


@given(st.integers(1, MAX_ROLLOUTS), layouts)
def test_two_steps_have_one_episode_number_only_if_they_are_of_one_episode(num_rollouts, ends):
    replay, done = filled(num_rollouts, ends)
    batch = draw_many(replay, jax.random.key(1))
    step, env = (np.asarray(batch.memory.obs)[:, 0, i].astype(int) for i in (0, 1))
    number = np.asarray(batch.episode)
    first, second = np.arange(BATCH - 1), np.arange(1, BATCH)
    low, high = np.minimum(step[first], step[second]), np.maximum(step[first], step[second])
    together = (env[first] == env[second]) & np.array(
        [not done[a:b, e].any() for a, b, e in zip(low, high, env[first], strict=True)]
    )

    np.testing.assert_array_equal(number[first] == number[second], together)


def test_everything_of_a_step_stays_together():
    replay, _ = filled(5, np.zeros((MAX_ROLLOUTS * LENGTH, ENVS)))
    memory = jax.tree.map(np.asarray, draw_many(replay, jax.random.key(0)).memory)

    np.testing.assert_array_equal(memory.action, 10 * memory.obs[..., 0] + np.arange(AGENTS))


@pytest.mark.parametrize("num_rollouts", [2, 3, 5])
def test_every_remembered_step_is_equally_likely(num_rollouts):
    replay, _ = filled(num_rollouts, np.zeros((MAX_ROLLOUTS * LENGTH, ENVS)))
    obs = jax.vmap(lambda key: draw_many(replay, key).memory.obs)(jax.random.split(jax.random.key(0), 100))
    cells = np.asarray(obs)[:, :, 0].reshape(-1, 2)
    _, counts = np.unique(cells, axis=0, return_counts=True)

    assert len(counts) == min(num_rollouts * LENGTH, CAPACITY) * ENVS
    assert stats.chisquare(counts).pvalue > 1e-3


def test_offsets_follow_the_truncated_geometric_distribution_across_the_seam_of_the_array():
    """After five rollouts of four steps the oldest of twelve steps lies in the middle of the ring."""
    replay, _ = filled(5, np.zeros((MAX_ROLLOUTS * LENGTH, ENVS)))
    batch = jax.vmap(lambda key: draw_many(replay, key))(jax.random.split(jax.random.key(0), 400))
    step = np.asarray(batch.memory.obs)[..., 0, 0].ravel()
    offset = np.asarray(batch.future_goal)[..., 0, 0].ravel() // 100 - step
    newest = 5 * LENGTH - 1
    for start in (newest - CAPACITY + 1, newest - 3, newest):
        left = int(newest - start) + 1
        found = np.bincount(offset[step == start].astype(int), minlength=left)
        weights = GAMMA ** np.arange(left)
        assert len(found) == left
        if left > 1:
            assert stats.chisquare(found, found.sum() * weights / weights.sum()).pvalue > 1e-3


def test_shuffled_goals_come_from_other_environments():
    replay, _ = filled(4, np.zeros((MAX_ROLLOUTS * LENGTH, ENVS)))
    batch = draw_shuffled(replay, jax.random.key(0))
    env = np.asarray(batch.memory.obs)[:, 0, 1].astype(int)
    goal_env = np.asarray(batch.future_goal)[:, 0, 0].astype(int) // 10 % 10

    assert (env != goal_env).all()


def test_shuffled_goals_come_from_unrelated_times():
    replay, _ = filled(4, np.zeros((MAX_ROLLOUTS * LENGTH, ENVS)))
    batch = draw_shuffled(replay, jax.random.key(0))
    time = np.asarray(batch.memory.obs)[:, 0, 0]
    goal_time = np.asarray(batch.future_goal)[:, 0, 0] // 100

    assert abs(stats.spearmanr(time, goal_time).statistic) < 4 / np.sqrt(BATCH)


def test_seeds_that_train_together_remember_the_same_as_alone():
    ends = np.random.default_rng(0).random((2, MAX_ROLLOUTS * LENGTH, ENVS)) < 0.2
    alone = [filled(7, e)[0] for e in ends]
    stacked = jax.tree.map(
        lambda *x: np.stack(x),
        *(
            jax.tree.map(
                lambda *x: np.stack(x),
                *(rollout_of(i, e[i * LENGTH : (i + 1) * LENGTH]) for i in range(MAX_ROLLOUTS)),
            )
            for e in ends
        ),
    )
    together = jax.vmap(remember, in_axes=(0, None))(stacked, 7)
    keys = jax.random.split(jax.random.key(0), 2)
    drawn = jax.vmap(draw_many)(together, keys)
    for seed in range(2):
        jax.tree.map(lambda a, b, s=seed: np.testing.assert_array_equal(a[s], b), together, alone[seed])
        jax.tree.map(
            lambda a, b, s=seed: np.testing.assert_array_equal(a[s], b), drawn, draw_many(alone[seed], keys[seed])
        )
