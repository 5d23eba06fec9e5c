"""Hindsight goals: where they come from, and how often."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import goalward as gw
from goalward.algos.common import Params
from goalward.data.rollout import Rollout
from goalward.losses.relabel import Discount, episode_ids, remaining_steps, sample_future_goals, sample_offsets
from goalward.nets.normalise import init_stats

pytestmark = pytest.mark.usefixtures("strict_dtypes")


STEPS, ENVS, AGENTS = 12, 3, 2
DRAWS = 512

# Any pattern of ends: an environment's row says after which steps its episodes end.
layouts = st.lists(st.lists(st.booleans(), min_size=STEPS, max_size=STEPS), min_size=ENVS, max_size=ENVS).map(
    lambda rows: np.array(rows, bool).T
)


@jax.jit
def layout_numbers(done):
    return remaining_steps(done), episode_ids(done)


@jax.jit
def many_future_goals(next_achieved, done):
    keys = jax.random.split(jax.random.key(7), DRAWS)
    return jax.vmap(lambda key: sample_future_goals(key, next_achieved, done, 0.9))(keys)


@jax.jit
def many_offsets(key, num_left, gamma):
    return sample_offsets(key, jnp.full(40_000, num_left), gamma)


def last_step(done, t, e):
    """Returns the index of the last step of the episode that step t of environment e belongs to."""
    while t < STEPS - 1 and not done[t, e]:
        t += 1
    return t


@given(layouts)
def test_remaining_steps_reach_to_the_end_of_the_episode_or_the_rollout(done):
    remaining, _ = layout_numbers(done)
    for t in range(STEPS):
        for e in range(ENVS):
            assert remaining[t, e] == last_step(done, t, e) - t + 1


@given(layouts)
def test_episode_ids_are_equal_within_an_episode_only(done):
    _, ids = (np.asarray(x) for x in layout_numbers(done))
    number, counter = {}, 0
    for e in range(ENVS):
        for t in range(STEPS):
            number[t, e] = counter
            counter += bool(done[t, e]) or t == STEPS - 1
    for first in number:
        for second in number:
            assert (ids[first] == ids[second]) == (number[first] == number[second])


@given(layouts)
def test_a_positive_is_any_later_step_of_the_same_episode_and_agent_and_nothing_else(done):
    # Every achieved goal says where it comes from: time, environment, agent.
    origin = np.stack(np.meshgrid(*map(np.arange, (STEPS, ENVS, AGENTS)), indexing="ij"), axis=-1)
    goals = np.asarray(many_future_goals(origin.astype(np.float32), done)).astype(int)
    assert (goals[..., 1:] == origin[None, ..., 1:]).all()
    for t in range(STEPS):
        for e in range(ENVS):
            # All of them, the goal achieved by the terminal step included; the least likely of 12 has
            # probability 0.044, so that 512 draws miss it with probability 1e-10.
            allowed = set(range(t, last_step(done, t, e) + 1))
            for agent in range(AGENTS):
                assert set(goals[:, t, e, agent, 0].tolist()) == allowed


@pytest.mark.parametrize("gamma", [0.01, 0.5, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("num_left", [1, 2, 7, 150])
def test_offsets_follow_the_truncated_geometric_distribution(gamma, num_left):
    key = jax.random.fold_in(jax.random.key(3), num_left)
    offsets = np.asarray(many_offsets(key, jnp.int32(num_left), Discount(jnp.float32(math.log(gamma)))))
    assert offsets.min() >= 0
    assert offsets.max() < num_left
    probability = gamma ** np.arange(num_left) * (1.0 - gamma) / (1.0 - gamma**num_left)
    expected = probability * len(offsets)
    observed = np.bincount(offsets, minlength=num_left)
    # The rare ones together, as the chi-square test requires.
    rare = expected < 10.0
    if rare.any():
        expected, observed = (np.append(x[~rare], x[rare].sum()) for x in (expected, observed))
    if expected[-1] < 1.0:
        assert observed[-1] <= 6
        expected, observed = expected[:-1], observed[:-1]
    if len(expected) == 1:
        assert observed[0] >= len(offsets) - 6
        return
    expected *= observed.sum() / expected.sum()
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_steps_draw_independently_of_each_other():
    # Two agents of one environment must not share their offsets.
    origin = jnp.broadcast_to(jnp.arange(STEPS, dtype=jnp.float32)[:, None, None, None], (STEPS, ENVS, AGENTS, 1))
    goals = np.asarray(many_future_goals(origin, np.zeros((STEPS, ENVS), bool)))[..., 0]
    first = goals[:, 0, 0]
    assert abs(np.corrcoef(first[:, 0], first[:, 1])[0, 1]) < 0.2
    assert abs(np.corrcoef(goals[:, 0, 0, 0], goals[:, 0, 1, 0])[0, 1]) < 0.2


def relabelled(positives, num_draws=200):
    """Returns many relabellings of one rollout of a team whose agent 1 becomes inactive after the second step."""
    env = gw.make("toy/routing", num_agents=2, size=3)
    config = gw.CPPO(
        num_envs=ENVS, rollout_length=STEPS, batch_size=STEPS, hidden_sizes=(4,), gamma=0.9, positives=positives
    )
    learner = config.bind(env, 1)
    time, envs, agents = np.meshgrid(*map(np.arange, (STEPS, ENVS, AGENTS)), indexing="ij")
    obs_dim = env.spec.obs_dim
    rollout = Rollout(
        obs=jnp.zeros((STEPS, ENVS, AGENTS, obs_dim)),
        goal=jnp.zeros((STEPS, ENVS, AGENTS, 2)),
        action_mask=jnp.ones((STEPS, ENVS, AGENTS, 5), bool),
        active=jnp.asarray((agents == 0) | (time < 2)),
        policy_outputs=jnp.zeros((STEPS, ENVS, AGENTS, 5)),
        action=jnp.zeros((STEPS, ENVS, AGENTS), jnp.int32),
        next_achieved=jnp.asarray(np.stack([time, envs], -1), jnp.float32),
        reward=jnp.zeros((STEPS, ENVS, AGENTS)),
        terminated=jnp.zeros((STEPS, ENVS), bool),
        truncated=jnp.zeros((STEPS, ENVS), bool),
        success=jnp.zeros((STEPS, ENVS), bool),
    )

    params = Params(policy=None, critic=None, obs_stats=init_stats(obs_dim))
    keys = jax.random.split(jax.random.key(0), num_draws)
    relabel = jax.vmap(lambda key: learner.relabel(learner.steps_of(params, rollout), rollout, key))
    pairs = jax.jit(relabel)(keys)
    goals = np.asarray(pairs.future_goal).astype(int).reshape(num_draws, STEPS, ENVS, AGENTS, 2)
    return goals, np.asarray(pairs.active[0]).reshape(STEPS, ENVS, AGENTS), rollout


def test_goals_achieved_by_agents_that_have_become_inactive_are_positives_too():
    goals, active, rollout = relabelled("future")
    np.testing.assert_array_equal(active, rollout.active)
    # From its first step on, agent 1 sees all the steps in which it no longer acts.
    assert set(goals[:, 0, 0, 1, 0].tolist()) == set(range(STEPS))
    assert (goals[..., 1] == np.arange(ENVS)[None, None, :, None]).all()


def test_shuffled_positives_come_from_other_environments_only():
    goals, _, _ = relabelled("shuffled")
    own = np.arange(ENVS)[None, None, :, None]
    assert (goals[..., 1] != own).all()
    assert set(goals[:, 0, 0, 0, 1].tolist()) == {1, 2}


def test_a_discount_that_float32_rounds_to_one_still_spreads_over_the_episode():
    offsets = sample_offsets(jax.random.key(0), jnp.full(4096, 50, jnp.int32), 1.0 - 2e-8)
    assert abs(float(offsets.mean(dtype=jnp.float32)) - 24.5) < 1.0


@pytest.mark.parametrize("gamma", [0.01, 0.99, 0.9999, 1.0 - 2e-8])
def test_a_traced_discount_draws_what_the_plain_number_draws(gamma):
    key, remaining = jax.random.key(0), jnp.full(4096, 200, jnp.int32)
    config = gw.CPPO(gamma=gamma)
    values = {name: jnp.float32(value) for name, value in config.traced_values(["gamma"]).items()}

    def offsets(values):
        return sample_offsets(key, remaining, config.with_traced(values).gamma)

    plain = np.asarray(sample_offsets(key, remaining, gamma))
    np.testing.assert_array_equal(offsets(values), plain)
    # XLA divides by a constant in another way than by a variable, which carries a few draws over to the next step.
    assert np.mean(np.asarray(jax.jit(offsets)(values)) != plain) < 1e-3
