"""Q, V and A of a learner, equations 6 to 9, against loops over steps, agents and actions."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.algos.base import Metrics
from goalward.algos.contrastive import Encoders
from goalward.algos.cppo import CPPOLearner
from goalward.algos.on_policy import Steps

pytestmark = pytest.mark.usefixtures("strict_dtypes")


SMALL = dict(hidden_sizes=(16,), repr_dim=8, policy_last_scale=1.0)


class Case(NamedTuple):
    learner: CPPOLearner
    encoders: Encoders
    steps: Steps
    advantages: Callable[..., tuple[jax.Array, Metrics]]  # compiled


@pytest.fixture(scope="module")
def discrete():
    """Returns a rollout on the routing task, and the rows that a learner makes of it."""
    env = gw.make("toy/routing", size=3, num_agents=2, max_steps=6)
    learner = gw.CPPO(num_envs=4, rollout_length=14, batch_size=8, **SMALL).bind(env, 1)

    @jax.jit
    def start(key):
        key_init, key_collect = jax.random.split(key)
        state = learner.init(key_init)
        _, rollout = learner.collect(state, key_collect)
        return state.params.critic, rollout, learner.steps_of(state.params, rollout)

    encoders, rollout, steps = start(jax.random.key(0))
    return Case(learner, encoders, steps, jax.jit(learner.advantages)), rollout


@pytest.fixture(scope="module")
def continuous():
    """Returns rows of observations, goals and Gaussian policies drawn at random for the maze."""
    learner = gw.CPPO(
        num_envs=2,
        rollout_length=3,
        batch_size=6,
        num_value_samples=4096,
        min_log_std=-2.0,
        max_log_std=1.0,
        initial_log_std=-0.5,
        **SMALL,
    ).bind(gw.make("toy/maze"), 1)
    rng = np.random.default_rng(0)
    obs, goal, outputs, action = (rng.normal(size=(6, 1, size)).astype(np.float32) for size in (4, 2, 4, 2))
    steps = Steps(
        obs=jnp.asarray(obs),
        goal=jnp.asarray(goal),
        action_mask=jnp.ones((6, 1, 2), bool),
        active=jnp.ones((6, 1), bool),
        policy_outputs=jnp.asarray(outputs),
        action=jnp.asarray(action),
    )

    @jax.jit
    def start(key):
        return Encoders(learner.networks.phi.init(key, obs, action), learner.networks.psi.init(key, goal))

    return Case(learner, start(jax.random.key(0)), steps, jax.jit(learner.advantages))


def row_q(case):
    """Returns a function from one observation, action and goal to Q, equation 6."""
    networks, encoders = case.learner.networks, case.encoders

    @jax.jit
    def represent(obs, action, goal):
        return networks.phi.apply(encoders.phi, obs, action), networks.psi.apply(encoders.psi, goal)

    def q(obs, action, goal):
        phi, psi = (np.asarray(x, np.float64) for x in represent(obs, action, goal))
        return -math.sqrt(((phi - psi) ** 2).sum())

    return q


def slow_discrete_advantages(case, rollout, mask):
    """Returns A [T*E, N] by a loop over steps, agents and allowed actions."""
    q = row_q(case)
    num_steps, num_envs, num_agents = rollout.active.shape
    one_hot_agent, one_hot_action = np.eye(num_agents, dtype=np.float32), np.eye(5, dtype=np.float32)
    result = np.zeros((num_steps * num_envs, num_agents))
    for t in range(num_steps):
        for e in range(num_envs):
            for n in range(num_agents):
                obs = np.concatenate([rollout.obs[t, e, n], one_hot_agent[n]])
                goal = np.asarray(rollout.goal[t, e, n])
                logits = np.asarray(rollout.policy_outputs[t, e, n], np.float64)
                allowed = [a for a in range(5) if mask[t * num_envs + e, n, a]]
                total = sum(math.exp(logits[a]) for a in allowed)
                v = sum(math.exp(logits[a]) / total * q(obs, one_hot_action[a], goal) for a in allowed)
                taken = one_hot_action[int(rollout.action[t, e, n])]
                result[t * num_envs + e, n] = q(obs, taken, goal) - v
    return result


def test_discrete_advantages_equal_a_loop_over_steps_agents_and_allowed_actions(discrete):
    case, rollout = discrete
    mask = np.asarray(case.steps.action_mask)
    assert 0.0 < mask.mean() < 1.0
    adv, metrics = case.advantages(case.encoders, case.steps, jax.random.key(1))
    slow = slow_discrete_advantages(case, rollout, mask)
    assert slow.std() > 0.02
    np.testing.assert_allclose(adv, slow, atol=1e-5)
    active = np.asarray(case.steps.active)
    np.testing.assert_allclose(metrics["value/adv_mean"], slow[active].mean(), atol=1e-5)
    np.testing.assert_allclose(metrics["value/adv_std"], slow[active].std(), atol=1e-5)


def test_outputs_for_forbidden_actions_have_no_influence_on_advantages(discrete):
    case, _ = discrete
    steps, key = case.steps, jax.random.key(1)
    adv, _ = case.advantages(case.encoders, steps, key)
    changed = steps._replace(policy_outputs=jnp.where(steps.action_mask, steps.policy_outputs, 50.0))
    np.testing.assert_allclose(case.advantages(case.encoders, changed, key)[0], adv, atol=1e-6)


def test_forbidding_one_more_action_takes_it_out_of_the_value(discrete):
    case, rollout = discrete
    mask = np.array(case.steps.action_mask)
    taken = np.asarray(case.steps.action)
    changed = np.zeros(taken.shape, bool)
    for row, agent in np.ndindex(taken.shape):
        others = [a for a in np.flatnonzero(mask[row, agent]) if a != taken[row, agent]]
        if others:
            mask[row, agent, others[0]] = False
            changed[row, agent] = True
    assert changed.any()
    key = jax.random.key(1)
    before, _ = case.advantages(case.encoders, case.steps, key)
    after, _ = case.advantages(case.encoders, case.steps._replace(action_mask=jnp.asarray(mask)), key)
    np.testing.assert_allclose(after, slow_discrete_advantages(case, rollout, mask), atol=1e-5)
    assert (np.abs(np.asarray(after - before))[changed] > 1e-5).all()


def test_expected_advantage_under_the_policy_is_zero(discrete):
    # Equations 7 and 9: the sum over actions of pi * A vanishes in every row.
    case, _ = discrete
    steps = case.steps
    total = np.zeros(steps.action.shape)
    for action in range(5):
        taken = jnp.full_like(steps.action, action)
        adv, _ = case.advantages(case.encoders, steps._replace(action=taken), jax.random.key(1))
        log_prob = case.learner.head.log_prob(steps.policy_outputs, steps.action_mask, taken)
        total += np.exp(log_prob) * np.asarray(adv)
    np.testing.assert_allclose(total, np.zeros(total.shape), atol=1e-5)


def test_continuous_value_lies_within_four_standard_errors_of_quadrature(continuous):
    config, steps = continuous.learner.config, continuous.steps
    encoders, networks = continuous.encoders, continuous.learner.networks
    adv, metrics = continuous.advantages(encoders, steps, jax.random.key(1))

    # Nodes and weights for expectations under a standard normal in two dimensions.
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
    grid_weights = np.outer(weights, weights).reshape(-1)

    @jax.jit
    def phi_of_many(obs, actions):
        return networks.phi.apply(encoders.phi, jnp.broadcast_to(obs, (len(actions), obs.shape[0])), actions)

    psi_of_one = jax.jit(lambda goal: networks.psi.apply(encoders.psi, goal))
    q_row = row_q(continuous)
    share = (config.initial_log_std - config.min_log_std) / (config.max_log_std - config.min_log_std)
    values = []
    for row in range(len(adv)):
        obs, goal = steps.obs[row, 0], steps.goal[row, 0]
        mean, raw = np.split(np.asarray(steps.policy_outputs[row, 0], np.float64), 2)
        sigmoid = 1.0 / (1.0 + np.exp(-raw) * (1.0 - share) / share)
        std = np.exp(config.min_log_std + (config.max_log_std - config.min_log_std) * sigmoid)
        phi = np.asarray(phi_of_many(obs, np.tanh(mean + std * grid).astype(np.float32)), np.float64)
        psi = np.asarray(psi_of_one(goal), np.float64)
        q_nodes = -np.sqrt(((phi - psi) ** 2).sum(-1))
        v = (grid_weights * q_nodes).sum()
        standard_error = math.sqrt((grid_weights * (q_nodes - v) ** 2).sum() / config.num_value_samples)
        assert standard_error < 0.01
        q = q_row(obs, np.tanh(np.asarray(steps.action[row, 0])), goal)
        values.append(q - float(adv[row, 0]))
        assert abs(values[-1] - v) < 4.0 * standard_error + 1e-5
    np.testing.assert_allclose(metrics["value/v"], np.mean(values), atol=1e-4)
