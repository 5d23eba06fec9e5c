"""The off-policy methods put together: what a gradient step changes, and how they explore."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.algos.contrastive import Pairs

SMALL = {"num_envs": 4, "rollout_length": 8, "batch_size": 64, "hidden_sizes": (16,), "replay_size": 8}
ROWS = 64


def csac(**settings):
    return gw.CSAC(**SMALL, **settings).bind(gw.make("toy/maze"), 10)


@pytest.fixture(scope="module")
def learner():
    return csac()


@pytest.fixture(scope="module")
def state(learner):
    return jax.jit(learner.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def pairs(learner):
    spec = learner.env.spec
    keys = jax.random.split(jax.random.key(1), 3)
    return Pairs(
        obs=jax.random.normal(keys[0], (ROWS, 1, spec.obs_dim)),
        action=jax.random.normal(keys[1], (ROWS, 1, 2)),
        future_goal=jax.random.normal(keys[2], (ROWS, 1, spec.goal_dim)),
        active=jnp.ones((ROWS, 1), bool),
        episode=jnp.arange(ROWS, dtype=jnp.int32),
    )


def are_equal(first, second):
    return all(jax.tree.leaves(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), first, second)))


def test_the_policys_step_raises_its_q_and_leaves_the_critic_alone(learner, state, pairs):
    mask = jnp.ones((ROWS, 1, 2), bool)
    cold = state.replace(params=state.params._replace(policy=state.params.policy._replace(log_alpha=jnp.float32(-20))))

    @jax.jit
    def step(state, key):
        return learner.update_policy(state, pairs, pairs.future_goal, mask, key)

    now = cold
    for _ in range(20):
        now, _, metrics = step(now, jax.random.key(2))  # the same noise, so that Q rises step by step
    _, _, first = step(cold, jax.random.key(2))

    assert metrics["value/q"] > first["value/q"]
    assert are_equal(now.params.critic, state.params.critic)
    assert are_equal(now.critic_opt, state.critic_opt)
    assert not are_equal(now.params.policy.network, state.params.policy.network)
    assert now.params.policy.log_alpha == -20


@pytest.mark.parametrize(("entropy", "direction"), [(-5.0, 1), (1.3, -1)])
def test_the_temperature_rises_when_the_policy_is_too_narrow_and_falls_when_it_is_too_wide(
    learner, state, entropy, direction
):
    assert learner.config.target_entropy == -1.0
    after = learner.update_temperature(state, jnp.full((ROWS, 1), -entropy), jnp.ones((ROWS, 1), bool))

    assert np.sign(after.params.policy.log_alpha - state.params.policy.log_alpha) == direction
    assert are_equal(after.params.policy.network, state.params.policy.network)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_policy_is_trained_at_random_goals_as_often_as_it_is_told(share):
    goal = jnp.broadcast_to(jnp.arange(4000.0)[:, None, None], (4000, 2, 3))
    chosen = np.asarray(csac(random_goals=share).goals(goal, jax.random.key(0)))
    own = (chosen == np.asarray(goal)).all((1, 2))

    np.testing.assert_allclose(1 - own.mean(), share, atol=4 * np.sqrt(0.25 / 4000) * (0 < share < 1))
    np.testing.assert_array_equal(chosen[~own], np.roll(goal, 1, axis=0)[~own])


@pytest.fixture(scope="module")
def cdqn():
    learner = gw.CDQN(**SMALL, epsilon_start=0.8, epsilon_end=0.2, epsilon_decay=0.5).bind(gw.make("toy/rooms"), 20)
    return learner, jax.jit(learner.init)(jax.random.key(0))


@pytest.mark.parametrize(("iteration", "epsilon"), [(0, 0.8), (5, 0.5), (10, 0.2), (20, 0.2)])
def test_epsilon_falls_linearly_over_its_share_of_training_and_is_how_often_actions_are_random(
    cdqn, iteration, epsilon
):
    learner, state = cdqn
    rows, allowed = 20_000, np.array([True, True, False, True])
    spec = learner.env.spec
    obs, goal = jnp.zeros((rows, 1, spec.obs_dim)), jnp.ones((rows, 1, spec.goal_dim))
    mask = jnp.broadcast_to(allowed, (rows, 1, 4))
    act = learner.act_fn(state.replace(iteration=jnp.int32(iteration)))
    _, action, _ = jax.jit(act)(jax.random.key(1), obs, goal, mask)
    greedy = learner.act(state.params, obs[:1], goal[:1], mask[:1])

    assert learner.epsilon(iteration) == pytest.approx(epsilon)
    counts = np.bincount(np.asarray(action).ravel(), minlength=4) / rows
    expected = epsilon * allowed / allowed.sum() + (1 - epsilon) * (np.arange(4) == int(greedy[0, 0]))
    np.testing.assert_allclose(counts, expected, atol=4 * np.sqrt(0.25 / rows))
    assert counts[2] == 0


def test_a_trained_cdqn_is_greedy_with_a_key_and_without(cdqn):
    learner, state = cdqn
    spec = learner.env.spec
    obs, goal = jax.random.normal(jax.random.key(0), (2, 50, 1, spec.obs_dim))
    q = learner.q_values(state.params, obs, goal[..., : spec.goal_dim])
    mask = jnp.broadcast_to(jnp.array([True, False, True, True]), q.shape)
    allowed = np.where(mask, q, -np.inf)

    for key in (None, jax.random.key(3)):
        found = learner.act(state.params, obs, goal[..., : spec.goal_dim], mask, key)
        np.testing.assert_array_equal(found, allowed.argmax(-1))
