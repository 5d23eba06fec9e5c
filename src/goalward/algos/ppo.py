"""PPO, proximal policy optimisation on a reward; with several agents, IPPO.

    for each iteration:
        collect T steps in E environments with the policy              `collect`
        A by generalised advantage estimation, targets A + V           `advantages`
        for each epoch, for each minibatch:                            `update`
            update V towards its targets                               `value_step`
            update pi by the clipped surrogate                         `policy_step`, as in CPPO

The baseline that CPPO is measured against: it learns from the task's reward, and sees the same observations and goals.
A truncated episode is worth what V says of the state in which it was cut off, a terminated one nothing more.

Axes: T time, E environments, N agents, B environment steps in a minibatch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from goalward.algos.base import ALGORITHMS, Metrics
from goalward.algos.common import Params
from goalward.algos.on_policy import OnPolicyConfig, OnPolicyLearner, State, Steps, as_rows
from goalward.algos.settings import Count, NonNegative, Positive, Share, Traced
from goalward.data.rollout import Rollout
from goalward.envs.base import GoalEnv, TimeStep
from goalward.errors import UserError
from goalward.losses.contrastive import masked_mean
from goalward.losses.returns import generalised_advantages, value_loss
from goalward.nets.mlp import ActorCritic, apply, check_actor_critic, make_actor_critic


@dataclass(frozen=True, kw_only=True)
class PPO(OnPolicyConfig):
    """Settings of PPO; scale and networks as CPPO's, so that the two can be compared."""

    name: ClassVar[str] = "ppo"

    num_epochs: Count = 4  # passes over a rollout
    gamma: Traced[Share] = 0.99  # discount of rewards
    gae_lambda: Traced[Share] = 0.95  # 0 trusts the value function, 1 the rewards
    value_clip: Positive | None = None  # how far a value may move from the old one in a rollout; None: any distance
    reward_scale: Traced[NonNegative] = 1.0  # factor of the reward; 0 is a negative control
    networks: ActorCritic | None = field(default=None, metadata={"python_only": True})  # a user's own modules

    def validate(self) -> None:
        """Raises `UserError` for values that do not go together."""
        super().validate()
        if self.networks is not None and not isinstance(self.networks, ActorCritic):
            kind = type(self.networks).__name__
            raise UserError(f"networks must be goalward.ActorCritic(policy, value); found {kind}.")

    def bind(self, env: GoalEnv, num_iterations: int) -> PPOLearner:
        """Returns the learner for `env`; learning rates reach their end after `num_iterations`."""
        if jax.eval_shape(env.reset, jax.random.key(0))[1].reward is None:
            others = [name for name, method in ALGORITHMS.items() if name != "ppo" and method.fits(env.spec)]
            raise UserError(
                f"ppo learns from rewards, and the time steps of {env.spec.name} have none. Fill in `reward`, or train "
                f"without one: {', '.join(others)}."
            )
        return PPOLearner(self.resolve(env.spec), env, num_iterations)


class Targets(NamedTuple):
    """What the value function learns from a rollout, as rows."""

    value: jax.Array  # [B, N], as it was when the rollout was collected
    target: jax.Array  # [B, N]


class PPOLearner(OnPolicyLearner[PPO]):
    """PPO on one environment; see the module's docstring for the order of its parts."""

    def __init__(self, config: PPO, env: GoalEnv, num_iterations: int) -> None:
        head = config.head(env.spec)
        self.networks = config.networks or make_actor_critic(
            config.torso(), num_policy_outputs=head.num_outputs, policy_last_scale=config.policy_last_scale
        )
        super().__init__(config, env, num_iterations, self.networks.policy, head)
        self.value_optimizer = config.optimizer(config.critic_lr, num_iterations)

    def init(self, key: jax.Array) -> State:
        """Returns the state before training."""
        key, key_policy, key_value, key_envs = jax.random.split(key, 4)
        worlds, obs_stats, obs = self.begin(key_envs)
        goal = worlds.episodes.step.goal
        check_actor_critic(self.networks, obs, goal, self.head.num_outputs)
        params = Params(
            policy=self.networks.policy.init(key_policy, obs, goal),
            critic=self.networks.value.init(key_value, obs, goal),
            obs_stats=obs_stats,
        )
        return State(
            params=params,
            policy_opt=self.policy_optimizer.init(params.policy),
            critic_opt=self.value_optimizer.init(params.critic),
            worlds=worlds,
            key=key,
        )

    def iterate(self, state: State) -> tuple[State, Metrics]:
        """Returns the state after one iteration, and its metrics."""
        key, key_collect, key_epochs = jax.random.split(state.key, 3)
        judge = partial(self.value_of_step, state.params)
        worlds, rollout = self.collect(state, key_collect, judge)
        steps = self.steps_of(state.params, rollout)
        last_value = judge(worlds.episodes.step)
        adv, targets, value_metrics = self.advantages(state.params.critic, steps, rollout, last_value)

        def epoch(state: State, key: jax.Array) -> tuple[State, Metrics]:
            return self.update(state, steps, adv, targets, key)

        state, metrics = jax.lax.scan(epoch, state, jax.random.split(key_epochs, self.config.num_epochs))
        return self.finish(state, rollout, worlds, key, metrics | value_metrics)

    def value(self, params: Params, obs: jax.Array, goal: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Returns V [..., N] of observations and goals."""
        del mask
        return self.estimate(params.critic, self.actor.observe(params.obs_stats, obs), goal)

    def estimate(self, critic: Any, obs: jax.Array, goal: jax.Array) -> jax.Array:
        """Returns V [...] for observations as the networks see them."""
        return apply(self.networks.value, critic, obs, goal)[..., 0]

    def value_of_step(self, params: Params, step: TimeStep) -> jax.Array:
        """Returns V [E, N] of the states in which environments are."""
        return self.value(params, step.obs, step.goal)

    def advantages(
        self, critic: Any, steps: Steps, rollout: Rollout, last_value: jax.Array
    ) -> tuple[jax.Array, Targets, Metrics]:
        """Returns A [T*E, N], the targets of the value function, and metrics.

        `last_value` [E, N] is V of the states that the rollout ends in.
        """
        value = self.in_chunks(lambda rows, _: self.estimate(critic, *rows), (steps.obs, steps.goal), jax.random.key(0))
        value = value.reshape(rollout.reward.shape)
        # A step leads to the state of the next one, unless the episode was cut off with it.
        next_value = jnp.concatenate([value[1:], last_value[None]])
        next_value = jnp.where(rollout.truncated[..., None], rollout.cut_off, next_value)
        per_agent = rollout.reward.shape
        adv = generalised_advantages(
            self.config.reward_scale * rollout.reward,
            value,
            next_value,
            jnp.broadcast_to(rollout.terminated[..., None], per_agent),
            jnp.broadcast_to(rollout.done[..., None], per_agent),
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )
        target = adv + value
        adv, value, target = as_rows((adv, value, target))
        mean = masked_mean(adv, steps.active)
        metrics = {
            "value/v": masked_mean(value, steps.active),
            "value/adv_mean": mean,
            "value/adv_std": jnp.sqrt(masked_mean(jnp.square(adv - mean), steps.active)),
            "value/explained": 1.0 - jnp.var(adv) / jnp.maximum(jnp.var(target), 1e-8),
        }
        return adv, Targets(value, target), metrics

    def update(
        self, state: State, steps: Steps, adv: jax.Array, targets: Targets, key: jax.Array
    ) -> tuple[State, Metrics]:
        """Returns the state after one pass of both networks over the rollout."""

        def one_batch(state: State, batch: tuple[Steps, jax.Array, Targets], key: jax.Array) -> tuple[State, Metrics]:
            rows, batch_adv, batch_targets = batch
            state, critic_metrics = self.value_step(state, rows, batch_targets)
            state, policy_metrics = self.policy_step(state, rows, batch_adv, key)
            return state, critic_metrics | policy_metrics

        return self.each_minibatch(one_batch, state, (steps, adv, targets), key)

    def value_step(self, state: State, batch: Steps, targets: Targets) -> tuple[State, Metrics]:
        """Returns the state after one step of the value function on a minibatch.

        Agents that have become inactive take part: what their team earns later is part of what was worth doing before.
        """

        def loss_fn(critic: Any) -> jax.Array:
            value = self.estimate(critic, batch.obs, batch.goal)
            return jnp.mean(value_loss(value, targets.target, targets.value, self.config.value_clip))

        critic = state.params.critic
        loss, grads = jax.value_and_grad(loss_fn)(critic)
        updates, critic_opt = self.value_optimizer.update(grads, state.critic_opt, critic)
        params = state.params._replace(critic=optax.apply_updates(critic, updates))
        metrics = {"critic/loss": loss, "critic/grad_norm": optax.tree.norm(grads)}
        return state.replace(params=params, critic_opt=critic_opt), metrics
