"""CPPO, contrastive proximal policy optimisation (Algorithm 1); with several agents, the paper's ICPPO.

    for each iteration:
        collect T steps in E environments with the policy                      `collect`
        relabel: a later achieved goal of the episode becomes the positive     `relabel`
        for each epoch:
            update phi and psi by InfoNCE                          (eq. 3)     `update_encoders`
            Q = -||phi(o,a) - psi(g*)||, V = E_pi[Q], A = Q - V    (eqs. 6-9)  `advantages`
            update pi by the clipped surrogate                     (eq. 4)     `update_policy`

No reward, no replay, no target network. All agents share the three networks. Discrete and continuous actions differ
in the policy head alone. The paper computes A before the epochs (`advantage_order = "before_critic"`); by default it
is computed with the encoders that have just learned from this very rollout.

Axes: T time, E environments, N agents, B environment steps in a minibatch, M actions that stand for the policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax
from flax import struct

from goalward.algos.base import Metrics
from goalward.algos.on_policy import OnPolicyConfig
from goalward.algos.settings import Count, Fraction, NonNegative
from goalward.data.rollout import Rollout, Worlds, collect, open_worlds, rollout_metrics
from goalward.envs.base import GoalEnv
from goalward.errors import UserError
from goalward.losses.contrastive import ENERGIES, advantage, contrastive_loss, masked_mean, state_value
from goalward.losses.policy import clipped_surrogate, normalise_advantage
from goalward.losses.relabel import episode_ids, sample_future_goals
from goalward.nets.actor import Actor
from goalward.nets.heads import make_head
from goalward.nets.mlp import Networks, apply, check_networks, make_networks
from goalward.nets.normalise import RunningStats, init_stats, update_stats


@dataclass(frozen=True, kw_only=True)
class CPPO(OnPolicyConfig):
    """Settings of CPPO; the defaults are the paper's discrete column, or ours where it is silent."""

    name: ClassVar[str] = "cppo"

    # Contrastive critic
    critic_loss: Literal["forward", "backward", "symmetric", "binary"] = "forward"  # noise-contrastive loss
    logsumexp_coef: NonNegative = 0.1  # weight of logsumexp^2, which pins what forward InfoNCE leaves open
    energy: Literal["l2", "squared_l2", "dot", "cosine"] = "l2"  # similarity of representations
    repr_dim: Count = 64  # size of a representation
    gamma: Fraction = 0.99  # discount of the occupancy measure that positives are drawn from
    mask_same_episode: bool = False  # negatives from other episodes only
    positives: Literal["future", "shuffled"] = "future"  # "shuffled": from other episodes, a negative control
    advantage_order: Literal["after_critic", "before_critic"] = "after_critic"  # "before_critic": as Algorithm 1
    num_value_samples: Count = 8  # actions drawn to estimate V where they cannot be listed
    networks: Networks | None = field(default=None, metadata={"python_only": True})  # a user's own modules

    def validate(self) -> None:
        """Raises `UserError` for values that do not go together."""
        super().validate()
        if self.networks is not None and not isinstance(self.networks, Networks):
            raise UserError(f"networks must be goalward.Networks(policy, phi, psi); found {self.networks!r}.")
        if self.positives == "shuffled" and self.num_envs < 2:
            raise UserError(f"num_envs must be at least 2 for shuffled positives; found {self.num_envs}.")

    @property
    def has_modules(self) -> bool:
        """Whether `networks` were passed."""
        return self.networks is not None

    def with_modules_of(self, other: Any) -> Self:
        """Returns these settings with the `networks` of others."""
        return replace(self, networks=other.networks)

    def bind(self, env: GoalEnv, num_iterations: int) -> CPPOLearner:
        """Returns the learner for `env`; learning rates reach their end after `num_iterations`."""
        return CPPOLearner(self.resolve(env.spec), env, num_iterations)


class Encoders(NamedTuple):
    """Parameters of the critic."""

    phi: Any
    psi: Any


class Params(NamedTuple):
    """Everything that is learned."""

    policy: Any
    encoders: Encoders
    obs_stats: RunningStats


class State(struct.PyTreeNode):
    """Everything that training carries from one iteration to the next."""

    params: Params
    policy_opt: optax.OptState
    encoder_opt: optax.OptState
    worlds: Worlds  # E environments
    key: jax.Array


class Steps(NamedTuple):
    """A rollout as rows of environment steps, with what the losses need; [T*E, ...] or a minibatch [B, ...]."""

    obs: jax.Array  # [B, N, D'], normalised and with the agent's identity
    goal: jax.Array  # [B, N, G], g*
    action_mask: jax.Array  # [B, N, A]
    active: jax.Array  # [B, N]
    policy_outputs: jax.Array  # [B, N, P], of the policy that acted
    action: jax.Array  # [B, N] or [B, N, A]
    future_goal: jax.Array  # [B, N, G], the positive
    episode: jax.Array  # [B], equal within an episode


class CPPOLearner:
    """CPPO on one environment; see the module's docstring for the order of its parts."""

    def __init__(self, config: CPPO, env: GoalEnv, num_iterations: int) -> None:
        self.config = config
        self.env = env
        self.steps_per_iteration = config.steps_per_iteration()
        self.num_batches = self.steps_per_iteration // config.batch_size
        self.energy = ENERGIES[config.energy]
        self.head = make_head(
            env.spec.action_space,
            min_log_std=config.min_log_std,
            max_log_std=config.max_log_std,
            initial_log_std=config.initial_log_std,
        )
        self.networks = config.networks or make_networks(
            hidden_sizes=config.hidden_sizes,
            activation=config.activation,
            use_layer_norm=config.use_layer_norm,
            repr_dim=config.repr_dim,
            num_policy_outputs=self.head.num_outputs,
            policy_last_scale=config.policy_last_scale,
            precision=config.precision,
        )
        self.actor = Actor(
            env.spec, self.networks.policy, self.head, norm_obs=config.norm_obs, agent_id=config.agent_id
        )
        self.policy_optimizer = config.optimizer(config.actor_lr, num_iterations)
        self.encoder_optimizer = config.optimizer(config.critic_lr, num_iterations)

    def init(self, key: jax.Array) -> State:
        """Returns the state before training."""
        key, key_policy, key_phi, key_psi, key_envs = jax.random.split(key, 5)
        spec = self.env.spec
        worlds = open_worlds(self.env, key_envs, self.config.num_envs)
        obs_stats = init_stats(spec.obs_dim)
        obs = self.actor.observe(obs_stats, worlds.episodes.step.obs)
        goal = worlds.episodes.step.goal
        action = jnp.zeros((*obs.shape[:-1], spec.action_space.size))
        check_networks(self.networks, obs, goal, action, self.head.num_outputs)
        params = Params(
            policy=self.networks.policy.init(key_policy, obs, goal),
            encoders=Encoders(
                phi=self.networks.phi.init(key_phi, obs, action), psi=self.networks.psi.init(key_psi, goal)
            ),
            obs_stats=obs_stats,
        )
        return State(
            params=params,
            policy_opt=self.policy_optimizer.init(params.policy),
            encoder_opt=self.encoder_optimizer.init(params.encoders),
            worlds=worlds,
            key=key,
        )

    def iterate(self, state: State) -> tuple[State, Metrics]:
        """Returns the state after one iteration of Algorithm 1, and its metrics."""
        key, key_collect, key_relabel, key_epochs = jax.random.split(state.key, 4)
        worlds, rollout = self.collect(state, key_collect)
        steps = self.relabel(state.params, rollout, key_relabel)
        computed_before = None
        if self.config.advantage_order == "before_critic":
            key_epochs, key_before = jax.random.split(key_epochs)
            computed_before = self.advantages(state.params.encoders, steps, key_before)

        def epoch(state: State, key: jax.Array) -> tuple[State, Metrics]:
            key_critic, key_value, key_policy = jax.random.split(key, 3)
            state, critic_metrics = self.update_encoders(state, steps, key_critic)
            adv, value_metrics = computed_before or self.advantages(state.params.encoders, steps, key_value)
            state, policy_metrics = self.update_policy(state, steps, adv, key_policy)
            return state, critic_metrics | value_metrics | policy_metrics

        state, metrics = jax.lax.scan(epoch, state, jax.random.split(key_epochs, self.config.num_epochs))
        if self.config.norm_obs:
            obs_stats = update_stats(state.params.obs_stats, rollout.obs)
            state = state.replace(params=state.params._replace(obs_stats=obs_stats))
        state = state.replace(worlds=worlds, key=key)
        # Of the parameters as they are now: a last update that blew up shows here and not one iteration later.
        norms = {
            "policy/param_norm": optax.tree.norm(state.params.policy),
            "critic/param_norm": optax.tree.norm(state.params.encoders),
        }
        return state, jax.tree.map(jnp.mean, metrics) | norms | rollout_metrics(rollout, worlds)

    def collect(self, state: State, key: jax.Array) -> tuple[Worlds, Rollout]:
        """Returns the environments and a rollout of the current policy (Algorithm 1, line 3)."""

        def act(
            key: jax.Array, obs: jax.Array, goal: jax.Array, mask: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            outputs = self.actor.outputs(state.params.policy, state.params.obs_stats, obs, goal)
            action = self.head.sample(key, outputs, mask)
            return outputs, action, self.head.to_env(action)

        return collect(self.env, act, key, state.worlds, self.config.rollout_length)

    def relabel(self, params: Params, rollout: Rollout, key: jax.Array) -> Steps:
        """Returns the rollout as rows, each with a positive goal from its future (Algorithm 1, line 4)."""
        key_goal, key_shift = jax.random.split(key)
        future_goal = sample_future_goals(key_goal, rollout.next_achieved, rollout.done, self.config.gamma)
        if self.config.positives == "shuffled":
            shift = jax.random.randint(key_shift, (), 1, self.config.num_envs)
            future_goal = jnp.roll(future_goal, shift, axis=1)
        steps = Steps(
            obs=self.actor.observe(params.obs_stats, rollout.obs),
            goal=rollout.goal,
            action_mask=rollout.action_mask,
            active=rollout.active if self.config.mask_inactive else jnp.ones_like(rollout.active),
            policy_outputs=rollout.policy_outputs,
            action=rollout.action,
            future_goal=future_goal,
            episode=episode_ids(rollout.done),
        )
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)

    def update_encoders(self, state: State, steps: Steps, key: jax.Array) -> tuple[State, Metrics]:
        """Returns the state after one pass of InfoNCE over the rollout (Algorithm 1, line 8)."""

        def loss_fn(encoders: Encoders, batch: Steps) -> tuple[jax.Array, Metrics]:
            phi = apply(self.networks.phi, encoders.phi, batch.obs, self.head.features(batch.action))
            psi = apply(self.networks.psi, encoders.psi, batch.future_goal)
            distinct = jnp.ones((self.config.batch_size,) * 2, bool)
            if self.config.mask_same_episode:
                distinct = batch.episode[:, None] != batch.episode[None, :]

            def agent_loss(phi: jax.Array, psi: jax.Array, active: jax.Array) -> Any:
                return contrastive_loss(
                    self.energy.all_pairs(phi, psi),
                    loss=self.config.critic_loss,
                    anchors=active,
                    distinct=distinct,
                    logsumexp_coef=self.config.logsumexp_coef,
                )

            # An agent's negatives are goals of the same agent in other steps. Every anchor weighs the same.
            per_agent = jax.vmap(agent_loss, in_axes=1)(phi, psi, batch.active)
            num_anchors = jnp.sum(batch.active, axis=0, dtype=jnp.float32)
            share = num_anchors / jnp.maximum(jnp.sum(num_anchors), 1.0)
            loss, stats = jax.tree.map(lambda x: jnp.sum(share * x), per_agent)
            return loss, {"critic/loss": loss} | {f"critic/{k}": v for k, v in stats._asdict().items()}

        def one_batch(state: State, rows: jax.Array) -> tuple[State, Metrics]:
            batch = jax.tree.map(lambda x: x[rows], steps)
            encoders = state.params.encoders
            grads, metrics = jax.grad(loss_fn, has_aux=True)(encoders, batch)
            updates, encoder_opt = self.encoder_optimizer.update(grads, state.encoder_opt, encoders)
            params = state.params._replace(encoders=optax.apply_updates(encoders, updates))
            metrics["critic/grad_norm"] = optax.tree.norm(grads)
            return state.replace(params=params, encoder_opt=encoder_opt), metrics

        state, metrics = jax.lax.scan(one_batch, state, self.minibatches(key))
        return state, jax.tree.map(jnp.mean, metrics)

    def advantages(self, encoders: Encoders, steps: Steps, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Returns A [T*E, N] at g*, with V under the policy that acted (Algorithm 1, lines 5 and 6)."""

        def one_chunk(chunk: tuple[jax.Array, Steps]) -> tuple[jax.Array, jax.Array]:
            key_support, batch = chunk
            psi = apply(self.networks.psi, encoders.psi, batch.goal)

            def q_value(action: jax.Array) -> jax.Array:
                phi = apply(self.networks.phi, encoders.phi, batch.obs, self.head.features(action))
                return self.energy.paired(phi, psi)

            actions, weights = self.head.support(
                key_support, batch.policy_outputs, batch.action_mask, self.config.num_value_samples
            )
            v = state_value(jax.vmap(q_value)(actions), weights)  # equations 7 and 8
            q = q_value(batch.action)  # equation 6
            return advantage(q, v), v  # equation 9

        # In pieces, since all actions of a whole rollout at once would not fit on a device.
        keys = jax.random.split(key, self.num_batches)
        chunks = jax.tree.map(lambda x: x.reshape(self.num_batches, -1, *x.shape[1:]), steps)
        adv, v = jax.lax.map(one_chunk, (keys, chunks))
        adv, v = (x.reshape(-1, *x.shape[2:]) for x in (adv, v))
        mean = masked_mean(adv, steps.active)
        metrics = {
            "value/v": masked_mean(v, steps.active),
            "value/adv_mean": mean,
            "value/adv_std": jnp.sqrt(masked_mean(jnp.square(adv - mean), steps.active)),
        }
        return adv, metrics

    def update_policy(self, state: State, steps: Steps, adv: jax.Array, key: jax.Array) -> tuple[State, Metrics]:
        """Returns the state after one pass of PPO's clipped update over the rollout (Algorithm 1, line 9)."""
        key, key_entropy = jax.random.split(key)

        def loss_fn(policy: Any, batch: Steps, adv: jax.Array, key: jax.Array) -> tuple[jax.Array, Metrics]:
            outputs = apply(self.networks.policy, policy, batch.obs, batch.goal)
            log_prob = self.head.log_prob(outputs, batch.action_mask, batch.action)
            old_log_prob = self.head.log_prob(batch.policy_outputs, batch.action_mask, batch.action)
            if self.config.norm_adv:
                adv = normalise_advantage(adv, batch.active, self.config.adv_std_floor)
            loss, stats = clipped_surrogate(log_prob, old_log_prob, adv, batch.active, self.config.clip)
            entropy = masked_mean(self.head.entropy(key, outputs, batch.action_mask), batch.active)
            metrics = {"policy/loss": loss, "policy/entropy": entropy}
            metrics |= {f"policy/{k}": v for k, v in stats._asdict().items()}
            return loss - (self.config.entropy_coef or 0.0) * entropy, metrics

        def one_batch(state: State, drawn: tuple[jax.Array, jax.Array]) -> tuple[State, Metrics]:
            rows, key = drawn
            batch = jax.tree.map(lambda x: x[rows], steps)
            policy = state.params.policy
            grads, metrics = jax.grad(loss_fn, has_aux=True)(policy, batch, adv[rows], key)
            updates, policy_opt = self.policy_optimizer.update(grads, state.policy_opt, policy)
            params = state.params._replace(policy=optax.apply_updates(policy, updates))
            metrics["policy/grad_norm"] = optax.tree.norm(grads)
            return state.replace(params=params, policy_opt=policy_opt), metrics

        keys = jax.random.split(key_entropy, self.num_batches)
        state, metrics = jax.lax.scan(one_batch, state, (self.minibatches(key), keys))
        return state, jax.tree.map(jnp.mean, metrics)

    def act(
        self,
        params: Params,
        obs: jax.Array,
        goal: jax.Array,
        mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns actions for obs [..., N, D] and goal [..., N, G]: sampled with a key, greedy without one."""
        outputs = self.actor.outputs(params.policy, params.obs_stats, obs, goal)
        return self.actor.act(outputs, mask, key)

    def minibatches(self, key: jax.Array) -> jax.Array:
        """Returns [number of batches, B], every row of the rollout once, in random order."""
        return jax.random.permutation(key, self.steps_per_iteration).reshape(self.num_batches, -1)
