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

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from goalward.algos.base import Metrics
from goalward.algos.common import Params
from goalward.algos.contrastive import ContrastiveConfig, ContrastiveCritic, Encoders, Pairs
from goalward.algos.on_policy import OnPolicyConfig, OnPolicyLearner, State, Steps, as_rows
from goalward.algos.settings import Width
from goalward.data.rollout import Rollout
from goalward.envs.base import GoalEnv
from goalward.losses.contrastive import advantage, masked_mean, state_value
from goalward.losses.relabel import episode_ids, sample_future_goals
from goalward.nets.mlp import check_networks


@dataclass(frozen=True, kw_only=True)
class CPPO(OnPolicyConfig, ContrastiveConfig):
    """Settings of CPPO; the defaults are the paper's discrete column, or ours where it is silent."""

    name: ClassVar[str] = "cppo"

    advantage_order: Literal["after_critic", "before_critic"] = "after_critic"  # "before_critic": as Algorithm 1
    num_value_samples: Width = 8  # actions drawn to estimate V where they cannot be listed

    def bind(self, env: GoalEnv, num_iterations: int) -> CPPOLearner:
        """Returns the learner for `env`; learning rates reach their end after `num_iterations`."""
        return CPPOLearner(self.resolve(env.spec), env, num_iterations)


class CPPOLearner(OnPolicyLearner[CPPO]):
    """CPPO on one environment; see the module's docstring for the order of its parts."""

    def __init__(self, config: CPPO, env: GoalEnv, num_iterations: int) -> None:
        head = config.head(env.spec)
        self.networks = config.make_networks(head)
        super().__init__(config, env, num_iterations, self.networks.policy, head)
        optimizer = config.optimizer(config.critic_lr, num_iterations)
        self.critic = ContrastiveCritic(config, self.networks, head, optimizer)

    def init(self, key: jax.Array) -> State:
        """Returns the state before training."""
        key, key_policy, key_phi, key_psi, key_envs = jax.random.split(key, 5)
        worlds, obs_stats, obs = self.begin(key_envs)
        goal = worlds.episodes.step.goal
        action = jnp.zeros((*obs.shape[:-1], self.env.spec.action_space.size))
        check_networks(self.networks, obs, goal, action, self.head.num_outputs)
        params = Params(
            policy=self.networks.policy.init(key_policy, obs, goal),
            critic=self.critic.init(key_phi, key_psi, obs, action, goal),
            obs_stats=obs_stats,
        )
        return State(
            params=params,
            policy_opt=self.policy_optimizer.init(params.policy),
            critic_opt=self.critic.optimizer.init(params.critic),
            worlds=worlds,
            key=key,
        )

    def iterate(self, state: State) -> tuple[State, Metrics]:
        """Returns the state after one iteration of Algorithm 1, and its metrics."""
        key, key_collect, key_relabel, key_epochs = jax.random.split(state.key, 4)
        worlds, rollout = self.collect(state, key_collect)
        steps = self.steps_of(state.params, rollout)
        pairs = self.relabel(steps, rollout, key_relabel)
        computed_before = None
        if self.config.advantage_order == "before_critic":
            key_epochs, key_before = jax.random.split(key_epochs)
            computed_before = self.advantages(state.params.critic, steps, key_before)

        def epoch(state: State, key: jax.Array) -> tuple[State, Metrics]:
            key_critic, key_value, key_policy = jax.random.split(key, 3)
            state, critic_metrics = self.update_encoders(state, pairs, key_critic)
            adv, value_metrics = computed_before or self.advantages(state.params.critic, steps, key_value)
            state, policy_metrics = self.update_policy(state, steps, adv, key_policy)
            return state, critic_metrics | value_metrics | policy_metrics

        state, metrics = jax.lax.scan(epoch, state, jax.random.split(key_epochs, self.config.num_epochs))
        return self.finish(state, rollout, worlds, key, metrics)

    def relabel(self, steps: Steps, rollout: Rollout, key: jax.Array) -> Pairs:
        """Returns the rows of a rollout, each with a positive goal from its future (Algorithm 1, line 4)."""
        key_goal, key_shift = jax.random.split(key)
        future_goal = sample_future_goals(key_goal, rollout.next_achieved, rollout.done, self.config.gamma)
        if self.config.positives == "shuffled":
            shift = jax.random.randint(key_shift, (), 1, self.config.num_envs)
            future_goal = jnp.roll(future_goal, shift, axis=1)
        future_goal, episode = as_rows((future_goal, episode_ids(rollout.done)))
        return Pairs(steps.obs, steps.action, future_goal, steps.active, episode)

    def update_encoders(self, state: State, pairs: Pairs, key: jax.Array) -> tuple[State, Metrics]:
        """Returns the state after one pass of InfoNCE over the rollout (Algorithm 1, line 8)."""

        def one_batch(state: State, batch: Pairs, key: jax.Array) -> tuple[State, Metrics]:
            del key
            encoders, critic_opt, metrics = self.critic.step(state.params.critic, state.critic_opt, batch)
            return state.replace(params=state.params._replace(critic=encoders), critic_opt=critic_opt), metrics

        return self.each_minibatch(one_batch, state, pairs, key)

    def advantages(self, encoders: Encoders, steps: Steps, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """Returns A [T*E, N] at g*, with V under the policy that acted (Algorithm 1, lines 5 and 6)."""

        def one_chunk(steps: Steps, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            compared = self.head.comparison(
                key, steps.policy_outputs, steps.action_mask, steps.action, self.config.num_value_samples
            )
            q = self.critic.q_values(encoders, steps.obs, compared.features, steps.goal)  # equation 6
            v = state_value(q, compared.policy)  # equations 7, 8
            return advantage(state_value(q, compared.taken), v), v  # equation 9

        adv, v = self.in_chunks(one_chunk, steps, key, self.head.num_compared(self.config.num_value_samples))
        mean = masked_mean(adv, steps.active)
        metrics = {
            "value/v": masked_mean(v, steps.active),
            "value/adv_mean": mean,
            "value/adv_std": jnp.sqrt(masked_mean(jnp.square(adv - mean), steps.active)),
        }
        return adv, metrics

    def update_policy(self, state: State, steps: Steps, adv: jax.Array, key: jax.Array) -> tuple[State, Metrics]:
        """Returns the state after one pass of PPO's clipped update (equation 4) over the rollout."""

        def one_batch(state: State, batch: tuple[Steps, jax.Array], key: jax.Array) -> tuple[State, Metrics]:
            return self.policy_step(state, *batch, key)

        return self.each_minibatch(one_batch, state, (steps, adv), key)

    def value(self, params: Params, obs: jax.Array, goal: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Returns V [..., N] of observations and goals, with the same draws each time where actions are continuous."""
        outputs = self.actor.outputs(params.policy, params.obs_stats, obs, goal)
        allowed = self.actor.allowed(outputs, mask)
        support = self.head.support(jax.random.key(0), outputs, allowed, self.config.num_value_samples)
        return self.critic.value(params.critic, self.actor.observe(params.obs_stats, obs), goal, support)
