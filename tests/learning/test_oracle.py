"""The critic ranks actions as the exact occupancy measure does, if and only if its loss pins what InfoNCE leaves open.

In a random tabular MDP the discounted occupancy of equation 2 is known by linear algebra. The critic learns from
simulated trajectories with the package's own sampler, networks, energy and losses; its energies at a fixed goal
are compared with the exact log Q over the four actions of each state. Figures are means over three MDPs, in each the
ten goals that are visited most, and all states but those whose best and worst action differ by less than 0.1 in log Q.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from goalward.losses.contrastive import ENERGIES, contrastive_loss
from goalward.losses.relabel import sample_future_goals
from goalward.nets.mlp import MLP, Joint, apply

NUM_STATES, NUM_ACTIONS, NUM_SEEDS = 30, 4, 3
NUM_GOALS = 10
GAMMA = 0.4
NUM_STEPS, NUM_ENVS = 256, 256
BATCH, NUM_UPDATES, LEARNING_RATE = 192, 2_000, 0.02
NUM_RELABELLINGS = 4

PHI, PSI = Joint(MLP((128,), 32)), MLP((128,), 32)
ENERGY = ENERGIES["l2"]


class Tabular(NamedTuple):
    """One MDP, or several stacked."""

    log_q: np.ndarray  # [S, A, G], exact
    state: np.ndarray  # [T, E]
    action: np.ndarray  # [T, E]
    next_state: np.ndarray  # [T, E]
    done: np.ndarray  # [T, E], never


def draw_mdp(seed):
    """Returns trajectories of a random policy in a random MDP, and the exact occupancy of next states under it."""
    rng = np.random.default_rng(seed)
    transition = rng.dirichlet(np.full(NUM_STATES, 0.3), size=(NUM_STATES, NUM_ACTIONS))
    policy = rng.dirichlet(np.full(NUM_ACTIONS, 100.0), size=NUM_STATES)
    under_policy = np.einsum("sa,sat->st", policy, transition)
    # (1 - gamma) sum_k gamma^k P^k, from the next state on: offset 0 is the state that the action leads to.
    occupancy = (1.0 - GAMMA) * np.linalg.inv(np.eye(NUM_STATES) - GAMMA * under_policy)
    q = transition @ occupancy
    np.testing.assert_allclose(q.sum(-1), 1.0)

    def draw(probabilities):
        below = rng.random((NUM_ENVS, 1)) > probabilities.cumsum(-1)
        return np.minimum(below.sum(-1), probabilities.shape[-1] - 1).astype(np.int32)

    state, records = rng.integers(NUM_STATES, size=NUM_ENVS, dtype=np.int32), []
    for _ in range(NUM_STEPS):
        action = draw(policy[state])
        next_state = draw(transition[state, action])
        records.append((state, action, next_state))
        state = next_state
    trajectories = [np.stack(x) for x in zip(*records, strict=True)]
    return Tabular(np.log(q), *trajectories, done=np.zeros((NUM_STEPS, NUM_ENVS), bool))


@jax.jit
def init_networks(keys):
    state, action = jnp.zeros((1, NUM_STATES)), jnp.zeros((1, NUM_ACTIONS))
    return jax.vmap(lambda key: (PHI.init(key, state, action), PSI.init(key, state)))(keys)


@partial(jax.jit, static_argnames="loss")
def learn_energies(keys, params, mdps, coef, *, loss):
    """Returns [seeds, S, A, G], the energies of critics trained side by side."""
    optimizer = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, NUM_UPDATES, 0.02))
    every, every_pair = jnp.ones(BATCH, bool), jnp.ones((BATCH, BATCH), bool)

    def loss_fn(params, state, action, goal):
        phi, psi = apply(PHI, params[0], state, action), apply(PSI, params[1], goal)
        logits = ENERGY.all_pairs(phi, psi)
        return contrastive_loss(logits, loss=loss, anchors=every, distinct=every_pair, logsumexp_coef=coef)[0]

    def one_seed(key, params, mdp):
        key_goals, key_rows = jax.random.split(key)
        # One agent whose goals are numbers of states; they become one-hot in the minibatch.
        achieved = mdp.next_state[:, :, None, None]
        goals = jax.lax.map(
            lambda k: sample_future_goals(k, achieved, mdp.done, GAMMA).reshape(-1),
            jax.random.split(key_goals, NUM_RELABELLINGS),
        )
        state, action = mdp.state.reshape(-1), mdp.action.reshape(-1)

        def update(carry, index):
            params, opt_state = carry
            rows = jax.random.randint(jax.random.fold_in(key_rows, index), (BATCH,), 0, state.size)
            goal = goals[index % NUM_RELABELLINGS, rows]
            gradient = jax.grad(loss_fn)(
                params,
                jax.nn.one_hot(state[rows], NUM_STATES),
                jax.nn.one_hot(action[rows], NUM_ACTIONS),
                jax.nn.one_hot(goal, NUM_STATES),
            )
            updates, opt_state = optimizer.update(gradient, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), None

        (params, _), _ = jax.lax.scan(update, (params, optimizer.init(params)), jnp.arange(NUM_UPDATES))
        states = jnp.repeat(jnp.eye(NUM_STATES), NUM_ACTIONS, axis=0)
        actions = jnp.tile(jnp.eye(NUM_ACTIONS), (NUM_STATES, 1))
        energies = ENERGY.all_pairs(apply(PHI, params[0], states, actions), apply(PSI, params[1], jnp.eye(NUM_STATES)))
        return energies.reshape(NUM_STATES, NUM_ACTIONS, NUM_STATES)

    return jax.vmap(one_seed)(keys, params, mdps)


def mean_rank_correlation(energies, log_q):
    """Returns Spearman's correlation over actions, averaged over seeds, frequent goals and states with a choice."""
    occupancy = np.exp(log_q).mean((1, 2), keepdims=True)
    frequent = np.argsort(occupancy, axis=-1)[..., -NUM_GOALS:]
    energies, log_q = (np.take_along_axis(x, frequent, axis=-1) for x in (energies, log_q))
    spread = log_q.max(2) - log_q.min(2)
    centre = (NUM_ACTIONS + 1) / 2
    learned, exact = (stats.rankdata(x, axis=2) - centre for x in (energies, log_q))
    correlation = (learned * exact).sum(2) / np.sqrt((learned**2).sum(2) * (exact**2).sum(2))
    return correlation[spread >= 0.1].mean()


@pytest.fixture(scope="module")
def correlations():
    """Returns the mean rank correlation for three losses."""
    mdps = jax.tree.map(lambda *x: np.stack(x), *(draw_mdp(seed) for seed in range(NUM_SEEDS)))
    data = jax.tree.map(jnp.asarray, mdps._replace(log_q=np.zeros(NUM_SEEDS, np.float32)))
    keys = jax.random.split(jax.random.key(0), NUM_SEEDS)
    params = init_networks(keys)
    found = {}
    for name, loss, coef in [("literal", "forward", 0.0), ("penalty", "forward", 0.1), ("symmetric", "symmetric", 0.0)]:
        energies = np.asarray(learn_energies(keys, params, data, jnp.float32(coef), loss=loss))
        found[name] = mean_rank_correlation(energies, mdps.log_q)
    print("rank correlation of learned and exact action values:", {k: round(float(v), 3) for k, v in found.items()})
    return found


@pytest.mark.parametrize("loss", ["penalty", "symmetric"])
def test_a_pinned_critic_ranks_actions_as_the_exact_occupancy_does(correlations, loss):
    assert correlations[loss] >= 0.65


@pytest.mark.parametrize("loss", ["penalty", "symmetric"])
def test_the_literal_forward_loss_ranks_actions_far_worse(correlations, loss):
    assert correlations[loss] >= correlations["literal"] + 0.3
