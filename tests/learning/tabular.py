"""Random tabular MDPs with an exact answer, and contrastive critics that learn from their trajectories.

In a tabular MDP the discounted occupancy of equation 2 is known by linear algebra. The critic learns from simulated
trajectories with the package's own sampler, networks, energy and losses; its energies at a fixed goal are compared
with the exact log Q over the four actions of each state.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import stats

from goalward.losses.contrastive import ENERGIES, contrastive_loss
from goalward.losses.relabel import sample_future_goals
from goalward.nets.mlp import MLP, apply

NUM_STATES, NUM_ACTIONS = 30, 4
LOSSES = {"literal": ("forward", 0.0), "penalty": ("forward", 0.1), "symmetric": ("symmetric", 0.0)}
ENERGY = ENERGIES["l2"]


@dataclass(frozen=True)
class Setting:
    """How much data and training a critic gets, and which goals are looked at."""

    gamma: float
    num_goals: int  # the most visited ones of each MDP
    num_envs: int
    batch_size: int
    num_updates: int
    learning_rate: float
    hidden_sizes: tuple[int, ...]
    repr_dim: int
    num_relabellings: int
    num_steps: int = 256
    num_seeds: int = 3

    @property
    def networks(self):
        """phi and psi."""
        return MLP(self.hidden_sizes, self.repr_dim), MLP(self.hidden_sizes, self.repr_dim)


class Tabular(NamedTuple):
    """One MDP, or several stacked."""

    log_q: np.ndarray  # [S, A, G], exact
    state: np.ndarray  # [T, E]
    action: np.ndarray  # [T, E]
    next_state: np.ndarray  # [T, E]
    done: np.ndarray  # [T, E], never


def draw_mdp(seed, setting):
    """Returns trajectories of a random policy in a random MDP, and the exact occupancy of next states under it."""
    rng = np.random.default_rng(seed)
    gamma = setting.gamma
    transition = rng.dirichlet(np.full(NUM_STATES, 0.3), size=(NUM_STATES, NUM_ACTIONS))
    policy = rng.dirichlet(np.full(NUM_ACTIONS, 100.0), size=NUM_STATES)
    under_policy = np.einsum("sa,sat->st", policy, transition)
    # (1 - gamma) sum_k gamma^k P^k, from the next state on: offset 0 is the state that the action leads to.
    occupancy = (1.0 - gamma) * np.linalg.inv(np.eye(NUM_STATES) - gamma * under_policy)
    q = transition @ occupancy
    np.testing.assert_allclose(q.sum(-1), 1.0)

    def draw(probabilities):
        below = rng.random((setting.num_envs, 1)) > probabilities.cumsum(-1)
        return np.minimum(below.sum(-1), probabilities.shape[-1] - 1).astype(np.int32)

    state, records = rng.integers(NUM_STATES, size=setting.num_envs, dtype=np.int32), []
    for _ in range(setting.num_steps):
        action = draw(policy[state])
        next_state = draw(transition[state, action])
        records.append((state, action, next_state))
        state = next_state
    trajectories = [np.stack(x) for x in zip(*records, strict=True)]
    return Tabular(np.log(q), *trajectories, done=np.zeros((setting.num_steps, setting.num_envs), bool))


@partial(jax.jit, static_argnames="setting")
def init_networks(keys, setting):
    phi_net, psi_net = setting.networks
    state, action = jnp.zeros((1, NUM_STATES)), jnp.zeros((1, NUM_ACTIONS))
    return jax.vmap(lambda key: (phi_net.init(key, state, action), psi_net.init(key, state)))(keys)


@partial(jax.jit, static_argnames=("loss", "setting"), compiler_options={"xla_backend_optimization_level": 3})
def learn_energies(keys, params, mdps, coef, *, loss, setting):
    """Returns [seeds, S, A, G], the energies of critics trained side by side."""
    phi_net, psi_net = setting.networks
    size = setting.batch_size
    optimizer = optax.adam(optax.cosine_decay_schedule(setting.learning_rate, setting.num_updates, 0.02))
    every, every_pair = jnp.ones(size, bool), jnp.ones((size, size), bool)

    def loss_fn(params, state, action, goal):
        phi, psi = apply(phi_net, params[0], state, action), apply(psi_net, params[1], goal)
        logits = ENERGY.all_pairs(phi, psi)
        return contrastive_loss(logits, loss=loss, anchors=every, distinct=every_pair, logsumexp_coef=coef)[0]

    def one_seed(key, params, mdp):
        key_goals, key_rows = jax.random.split(key)
        # One agent whose goals are numbers of states; they become one-hot in the minibatch.
        achieved = mdp.next_state[:, :, None, None]
        goals = jax.lax.map(
            lambda k: sample_future_goals(k, achieved, mdp.done, setting.gamma).reshape(-1),
            jax.random.split(key_goals, setting.num_relabellings),
        )
        state, action = mdp.state.reshape(-1), mdp.action.reshape(-1)

        def update(carry, index):
            params, opt_state = carry
            rows = jax.random.randint(jax.random.fold_in(key_rows, index), (size,), 0, state.size)
            goal = goals[index % setting.num_relabellings, rows]
            gradient = jax.grad(loss_fn)(
                params,
                jax.nn.one_hot(state[rows], NUM_STATES),
                jax.nn.one_hot(action[rows], NUM_ACTIONS),
                jax.nn.one_hot(goal, NUM_STATES),
            )
            updates, opt_state = optimizer.update(gradient, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), None

        (params, _), _ = jax.lax.scan(update, (params, optimizer.init(params)), jnp.arange(setting.num_updates))
        states = jnp.repeat(jnp.eye(NUM_STATES), NUM_ACTIONS, axis=0)
        actions = jnp.tile(jnp.eye(NUM_ACTIONS), (NUM_STATES, 1))
        energies = ENERGY.all_pairs(
            apply(phi_net, params[0], states, actions), apply(psi_net, params[1], jnp.eye(NUM_STATES))
        )
        return energies.reshape(NUM_STATES, NUM_ACTIONS, NUM_STATES)

    return jax.vmap(one_seed)(keys, params, mdps)


def mean_rank_correlation(energies, log_q, num_goals):
    """Returns Spearman's correlation over actions, averaged over seeds, frequent goals and states with a choice.

    States whose best and worst action differ by less than 0.1 in log Q are left out.
    """
    occupancy = np.exp(log_q).mean((1, 2), keepdims=True)
    frequent = np.argsort(occupancy, axis=-1)[..., -num_goals:]
    energies, log_q = (np.take_along_axis(x, frequent, axis=-1) for x in (energies, log_q))
    spread = log_q.max(2) - log_q.min(2)
    centre = (NUM_ACTIONS + 1) / 2
    learned, exact = (stats.rankdata(x, axis=2) - centre for x in (energies, log_q))
    correlation = (learned * exact).sum(2) / np.sqrt((learned**2).sum(2) * (exact**2).sum(2))
    return correlation[spread >= 0.1].mean()


def rank_correlations(setting):
    """Returns the mean rank correlation for each of three losses."""
    mdps = jax.tree.map(lambda *x: np.stack(x), *(draw_mdp(seed, setting) for seed in range(setting.num_seeds)))
    data = jax.tree.map(jnp.asarray, mdps._replace(log_q=np.zeros(setting.num_seeds, np.float32)))
    keys = jax.random.split(jax.random.key(0), setting.num_seeds)
    params = init_networks(keys, setting)
    found = {}
    for name, (loss, coef) in LOSSES.items():
        energies = learn_energies(keys, params, data, jnp.float32(coef), loss=loss, setting=setting)
        found[name] = float(mean_rank_correlation(np.asarray(energies), mdps.log_q, setting.num_goals))
    return found
