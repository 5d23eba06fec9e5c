"""CSAC, contrastive soft actor-critic (CRL), and ICSAC, its form for discrete actions and teams (ICRL).

    for each iteration:
        collect T steps in E environments, and remember them                           `off_policy`
        for each gradient step:
            draw steps (o, a) with later achieved goals g of their episodes            `off_policy`
            update phi and psi by InfoNCE                                              `off_policy`
            update pi to minimise alpha log pi(a'|o,g) - Q(o,a',g),  a' ~ pi           `update_policy`
            update alpha towards the target entropy                                    `update_temperature`

Both are this one file; they differ in the policy head. A continuous action is a function of the policy's mean and
spread, so the gradient of Q reaches the policy through it. A discrete one is not: ICSAC takes the one-hot of a sample
forward and the gradient of a Gumbel-softmax backward (straight-through). The policy is trained at relabelled goals, of
the same episode or (`random_goals`) of any, and acts at the goal that it is asked to reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from goalward.algos.base import Metrics
from goalward.algos.common import Params
from goalward.algos.contrastive import Pairs
from goalward.algos.off_policy import OffPolicyConfig, OffPolicyLearner, State
from goalward.algos.settings import Positive, Share, Traced
from goalward.data.replay import Draw
from goalward.data.rollout import ActFn
from goalward.envs.base import Discrete, EnvSpec, GoalEnv
from goalward.errors import UserError
from goalward.losses.contrastive import masked_mean
from goalward.losses.entropy import soft_policy_loss, temperature_loss
from goalward.nets.mlp import apply

_VALUE_SAMPLES = 8  # actions drawn to show V where they cannot be listed


@dataclass(frozen=True, kw_only=True)
class CSAC(OffPolicyConfig):
    """Settings of CSAC."""

    name: ClassVar[str] = "csac"

    alpha_lr: Traced[Positive] = 2.5e-4  # learning rate of the temperature
    initial_alpha: Traced[Positive] = 1.0  # temperature at the start
    random_goals: Share = 0.0  # share of the goals at which the policy is trained that come from any episode
    # Of the policy; None: -0.5 per dimension, or 0.3 log(number of actions)
    target_entropy: Traced[float] | None = None

    def validate(self) -> None:
        """Raises `UserError` for values that do not go together."""
        super().validate()
        if self.lr_schedule != "constant" and self.lr_end > self.alpha_lr:
            raise UserError(f"lr_end must not exceed alpha_lr {self.alpha_lr}; found {self.lr_end}.")

    def resolve(self, spec: EnvSpec) -> Self:
        """Returns the settings with the target entropy that suits the action space."""
        self.check_fit(spec)
        if self.target_entropy is not None:
            return self
        size = spec.action_space.size
        is_discrete = isinstance(spec.action_space, Discrete)
        return replace(self, target_entropy=0.3 * math.log(size) if is_discrete else -0.5 * size)

    def relaxation(self) -> float:
        """Returns the temperature of the relaxation of actions, which continuous ones do not need."""
        return 1.0

    def bind(self, env: GoalEnv, num_iterations: int) -> CSACLearner:
        """Returns the learner for `env`; learning rates reach their end after `num_iterations`."""
        return CSACLearner(self.resolve(env.spec), env, num_iterations)


@dataclass(frozen=True, kw_only=True)
class ICSAC(CSAC):
    """Settings of ICSAC."""

    name: ClassVar[str] = "icsac"

    gumbel_temperature: Traced[Positive] = 1.0  # of the softmax whose gradient stands for that of a sample

    def relaxation(self) -> float:
        """Returns the temperature of the Gumbel-softmax."""
        return self.gumbel_temperature


class SoftPolicy(NamedTuple):
    """A policy and the temperature that weighs its entropy; or the states of their optimisers."""

    network: Any
    log_alpha: Any  # []


class CSACLearner(OffPolicyLearner[CSAC]):
    """CSAC or ICSAC on one environment."""

    def __init__(self, config: CSAC, env: GoalEnv, num_iterations: int) -> None:
        super().__init__(config, env, num_iterations)
        self.policy_optimizer = config.optimizer(config.actor_lr, num_iterations)
        self.alpha_optimizer = config.optimizer(config.alpha_lr, num_iterations)

    def init_policy(self, key: jax.Array, obs: jax.Array, goal: jax.Array) -> tuple[SoftPolicy, SoftPolicy]:
        """Returns the policy with its temperature, and their optimisers."""
        policy = SoftPolicy(self.networks.policy.init(key, obs, goal), jnp.log(jnp.float32(self.config.initial_alpha)))
        optimizers = SoftPolicy(self.policy_optimizer.init(policy.network), self.alpha_optimizer.init(policy.log_alpha))
        return policy, optimizers

    def act_fn(self, state: State) -> ActFn:
        """Returns how the policy acts in a rollout."""
        return self.actor.act_fn(state.params.policy.network, state.params.obs_stats)

    def improve(self, state: State, pairs: Pairs, batch: Draw, key: jax.Array) -> tuple[State, Metrics]:
        """Returns the state after a gradient step of the policy, and one of its temperature."""
        key_goal, key_action = jax.random.split(key)
        goal = self.goals(pairs.future_goal, key_goal)
        state, log_prob, metrics = self.update_policy(state, pairs, goal, batch.memory.action_mask, key_action)
        return self.update_temperature(state, log_prob, pairs.active), metrics

    def goals(self, future_goal: jax.Array, key: jax.Array) -> jax.Array:
        """Returns [B, N, G], the goals at which the policy is trained."""
        if not self.config.random_goals:
            return future_goal
        # Rows are independent draws, so a neighbour's goal is a random one, whether or not its agent was still active.
        from_any = jax.random.bernoulli(key, self.config.random_goals, (future_goal.shape[0], 1, 1))
        return jnp.where(jnp.broadcast_to(from_any, future_goal.shape), jnp.roll(future_goal, 1, axis=0), future_goal)

    def update_policy(
        self, state: State, pairs: Pairs, goal: jax.Array, mask: jax.Array, key: jax.Array
    ) -> tuple[State, jax.Array, Metrics]:
        """Returns the state after a gradient step of the policy, and log pi [B, N] before it."""
        policy = state.params.policy

        def loss_fn(network: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            outputs = apply(self.networks.policy, network, pairs.obs, goal)
            action, log_prob = self.head.relaxed(key, outputs, mask, self.config.relaxation())
            q = self.critic.q_value(state.params.critic, pairs.obs, action, goal)
            return soft_policy_loss(q, log_prob, policy.log_alpha, pairs.active), (q, log_prob)

        (loss, (q, log_prob)), grads = jax.value_and_grad(loss_fn, has_aux=True)(policy.network)
        updates, policy_opt = self.policy_optimizer.update(grads, state.policy_opt.network, policy.network)
        policy = policy._replace(network=optax.apply_updates(policy.network, updates))
        metrics = {
            "policy/loss": loss,
            "policy/entropy": -masked_mean(log_prob, pairs.active),
            "policy/grad_norm": optax.tree.norm(grads),
            "policy/alpha": jnp.exp(policy.log_alpha),
            "value/q": masked_mean(q, pairs.active),
        }
        state = state.replace(
            params=state.params._replace(policy=policy), policy_opt=state.policy_opt._replace(network=policy_opt)
        )
        return state, log_prob, metrics

    def update_temperature(self, state: State, log_prob: jax.Array, active: jax.Array) -> State:
        """Returns the state after a gradient step of the temperature towards the target entropy."""
        policy = state.params.policy
        grad = jax.grad(temperature_loss)(policy.log_alpha, log_prob, self.config.target_entropy, active)
        update, alpha_opt = self.alpha_optimizer.update(grad, state.policy_opt.log_alpha)
        policy = policy._replace(log_alpha=optax.apply_updates(policy.log_alpha, update))
        return state.replace(
            params=state.params._replace(policy=policy), policy_opt=state.policy_opt._replace(log_alpha=alpha_opt)
        )

    def act(
        self,
        params: Params,
        obs: jax.Array,
        goal: jax.Array,
        mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns actions for obs [..., N, D] and goal [..., N, G]: sampled with a key, greedy without one."""
        return self.actor.act(self.actor.outputs(params.policy.network, params.obs_stats, obs, goal), mask, key)

    def value(self, params: Params, obs: jax.Array, goal: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Returns the mean of Q [..., N] under the policy, without its entropy; see `Learner.value`."""
        outputs = self.actor.outputs(params.policy.network, params.obs_stats, obs, goal)
        support = self.head.support(jax.random.key(0), outputs, self.actor.allowed(outputs, mask), _VALUE_SAMPLES)
        return self.critic.value(params.critic, self.actor.observe(params.obs_stats, obs), goal, support)
