"""What PPO and CPPO share: fresh rollouts, and PPO's clipped update of the policy. They differ in who judges actions.

Axes: T time, E environments, N agents, B environment steps in a minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Self, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from goalward.algos.base import Metrics
from goalward.algos.common import CommonConfig, Params
from goalward.algos.settings import Count, Fraction, NonNegative, Positive, Traced
from goalward.backend import is_gpu
from goalward.data.rollout import LookFn, Rollout, Worlds, collect, open_worlds, rollout_metrics
from goalward.envs.base import Discrete, EnvSpec, GoalEnv
from goalward.errors import UserError
from goalward.losses.contrastive import masked_mean
from goalward.losses.policy import clipped_surrogate, normalise_advantage
from goalward.nets.actor import Actor
from goalward.nets.heads import Head
from goalward.nets.mlp import apply
from goalward.nets.normalise import RunningStats, init_stats, update_stats


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(CommonConfig):
    """The defaults are the paper's, or ours where it is silent."""

    num_epochs: Count = 1  # passes over a rollout
    clip: Traced[Fraction] = 0.2  # range of the probability ratio, 1 - clip to 1 + clip
    # Weight of the entropy bonus; None: 0.01 for discrete actions, 0.001 for continuous ones
    entropy_coef: Traced[NonNegative] | None = None
    norm_adv: bool = True  # normalise advantages per minibatch
    adv_std_floor: Traced[Positive] = 0.01  # smallest standard deviation that advantages are divided by

    def validate(self) -> None:
        """Raises `UserError` for values that do not go together."""
        super().validate()
        steps = self.steps_per_iteration()
        if steps % self.batch_size:
            small = [size for size in range(1, math.isqrt(steps) + 1) if steps % size == 0]
            fitting = {size for divisor in small for size in (divisor, steps // divisor)} - {1}
            nearest = min(fitting, key=lambda size: abs(size - self.batch_size), default=steps)
            raise UserError(
                f"batch_size must divide num_envs x rollout_length = {self.num_envs} x {self.rollout_length} = "
                f"{steps}; found {self.batch_size}, the nearest that does is {nearest}."
            )

    def resolve(self, spec: EnvSpec) -> Self:
        """Returns the settings with the entropy coefficient that suits the action space."""
        if self.entropy_coef is not None:
            return self
        return replace(self, entropy_coef=0.01 if isinstance(spec.action_space, Discrete) else 0.001)

    def gradient_steps_per_iteration(self) -> int:
        """Returns the number of minibatches of one iteration, over all epochs."""
        return self.num_epochs * (self.steps_per_iteration() // self.batch_size)


_INPUTS_AT_ONCE = 2**16  # of a network on a GPU, per seed, where no gradient is taken

ConfigT = TypeVar("ConfigT", bound=OnPolicyConfig)


class State(struct.PyTreeNode):
    """Everything that training carries from one iteration to the next."""

    params: Params
    policy_opt: optax.OptState
    critic_opt: optax.OptState
    worlds: Worlds  # E environments
    key: jax.Array


class Steps(NamedTuple):
    """A rollout as rows of environment steps, as the policy's update reads it; [T*E, ...] or a minibatch [B, ...]."""

    obs: jax.Array  # [B, N, D'], normalised and with the agent's identity
    goal: jax.Array  # [B, N, G], g*
    action_mask: jax.Array  # [B, N, A]
    active: jax.Array  # [B, N]
    policy_outputs: jax.Array  # [B, N, P], of the policy that acted
    action: jax.Array  # [B, N] or [B, N, A]


class OnPolicyLearner(Generic[ConfigT]):
    """The common half of the learners: acting, rows of a rollout, and the policy's update."""

    replay_bytes = 0

    def __init__(
        self, config: ConfigT, env: GoalEnv, num_iterations: int, policy_network: nn.Module, head: Head
    ) -> None:
        self.config = config
        self._policy_network = policy_network
        self.env = env
        self.head = head
        self.num_envs = config.num_envs
        self.steps_per_iteration = config.steps_per_iteration()
        self.num_batches = self.steps_per_iteration // config.batch_size
        self.actor = Actor(env.spec, policy_network, head, norm_obs=config.norm_obs, agent_id=config.agent_id)
        self.policy_optimizer = config.optimizer(config.actor_lr, num_iterations)

    def begin(self, key: jax.Array) -> tuple[Worlds, RunningStats, jax.Array]:
        """Returns the environments, observation statistics, and what the networks see of the first states."""
        worlds = open_worlds(self.env, key, self.config.num_envs)
        obs_stats = init_stats(self.env.spec.obs_dim)
        return worlds, obs_stats, self.actor.observe(obs_stats, worlds.episodes.step.obs)

    def collect(self, state: State, key: jax.Array, look: LookFn | None = None) -> tuple[Worlds, Rollout]:
        """Returns the environments and a rollout of the current policy (Algorithm 1, line 3)."""
        act = self.actor.act_fn(state.params.policy, state.params.obs_stats)
        return collect(self.env, act, key, state.worlds, self.config.rollout_length, look=look)

    def steps_of(self, params: Params, rollout: Rollout) -> Steps:
        """Returns the rollout as rows."""
        steps = Steps(
            obs=self.actor.observe(params.obs_stats, rollout.obs),
            goal=rollout.goal,
            action_mask=rollout.action_mask,
            active=rollout.active if self.config.mask_inactive else jnp.ones_like(rollout.active),
            policy_outputs=rollout.policy_outputs,
            action=rollout.action,
        )
        return as_rows(steps)

    def each_minibatch(
        self, step: Callable[[State, Any, jax.Array], tuple[State, Metrics]], state: State, rows: Any, key: jax.Array
    ) -> tuple[State, Metrics]:
        """Returns the state after `step(state, minibatch, key)` on all rows, in random order, and mean metrics."""
        key, key_steps = jax.random.split(key)
        # Brought into order all at once: one large copy takes less than a small one for every step and array.
        order = self.minibatches(key)
        batches = jax.tree.map(lambda x: x[order], rows)
        keys = jax.random.split(key_steps, self.num_batches)
        state, metrics = jax.lax.scan(lambda state, drawn: step(state, *drawn), state, (batches, keys))
        return state, jax.tree.map(jnp.mean, metrics)

    def in_chunks(
        self, function: Callable[[Any, jax.Array], Any], rows: Any, key: jax.Array, num_inputs: int = 1
    ) -> Any:
        """Returns `function(rows, key)` of all rows [T*E, ...] in pieces, whose layers fit on a device.

        The function passes `num_inputs` for each row and agent through a network.
        """
        num_chunks = self.num_batches
        if is_gpu():  # which needs more at once to be busy
            inputs = self.steps_per_iteration * self.env.spec.num_agents * num_inputs
            num_chunks = next_divisor(self.steps_per_iteration, math.ceil(inputs / _INPUTS_AT_ONCE))
        chunks = jax.tree.map(lambda x: x.reshape(num_chunks, -1, *x.shape[1:]), rows)
        results = jax.lax.map(lambda chunk: function(*chunk), (chunks, jax.random.split(key, num_chunks)))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), results)

    def policy_step(self, state: State, batch: Steps, adv: jax.Array, key: jax.Array) -> tuple[State, Metrics]:
        """Returns the state after one step of PPO's clipped update (equation 4) on a minibatch."""

        def loss_fn(policy: Any, adv: jax.Array) -> tuple[jax.Array, Metrics]:
            outputs = apply(self._policy_network, policy, batch.obs, batch.goal)
            log_prob = self.head.log_prob(outputs, batch.action_mask, batch.action)
            old_log_prob = self.head.log_prob(batch.policy_outputs, batch.action_mask, batch.action)
            if self.config.norm_adv:
                adv = normalise_advantage(adv, batch.active, self.config.adv_std_floor)
            loss, stats = clipped_surrogate(log_prob, old_log_prob, adv, batch.active, self.config.clip)
            entropy = masked_mean(self.head.entropy(key, outputs, batch.action_mask), batch.active)
            metrics = {"policy/loss": loss, "policy/entropy": entropy}
            metrics |= {f"policy/{k}": v for k, v in stats._asdict().items()}
            bonus = 0.0 if self.config.entropy_coef is None else self.config.entropy_coef * entropy
            return loss - bonus, metrics

        policy = state.params.policy
        grads, metrics = jax.grad(loss_fn, has_aux=True)(policy, adv)
        updates, policy_opt = self.policy_optimizer.update(grads, state.policy_opt, policy)
        params = state.params._replace(policy=optax.apply_updates(policy, updates))
        metrics["policy/grad_norm"] = optax.tree.norm(grads)
        return state.replace(params=params, policy_opt=policy_opt), metrics

    def finish(
        self, state: State, rollout: Rollout, worlds: Worlds, key: jax.Array, metrics: Metrics
    ) -> tuple[State, Metrics]:
        """Returns the state and the metrics at the end of an iteration; `metrics` are means over epochs, or lists."""
        if self.config.norm_obs:
            obs_stats = update_stats(state.params.obs_stats, rollout.obs)
            state = state.replace(params=state.params._replace(obs_stats=obs_stats))
        # Of the parameters as they are now: a last update that blew up shows here and not one iteration later.
        norms = {
            "policy/param_norm": optax.tree.norm(state.params.policy),
            "critic/param_norm": optax.tree.norm(state.params.critic),
        }
        metrics = jax.tree.map(jnp.mean, metrics) | norms | rollout_metrics(rollout, worlds)
        return state.replace(worlds=worlds, key=key), metrics

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
        return random_order(key, self.steps_per_iteration).reshape(self.num_batches, -1)


def next_divisor(number: int, least: int) -> int:
    """Returns the smallest divisor of a number that is not below `least`, or the number itself."""
    return next((d for d in range(max(1, least), number) if number % d == 0), number)


def random_order(key: jax.Array, count: int) -> jax.Array:
    """Returns [count], the numbers from 0 in an order that is random enough to be cut into minibatches.

    Numbers that draw the same bits stay in order: neighbours rise a little too often, but which of them come into a
    minibatch is left to chance, except for those that tie at its edge.
    """
    bits = jax.random.bits(key, (count,))
    # `jax.random.permutation` sorts pairs of a draw and a number, twice, to break ties.
    if count > 2**16:
        return jnp.argsort(bits)
    # Both in one word: an array alone is sorted in less than half the time on a CPU. At least 16 random bits are left.
    width = (count - 1).bit_length()
    order = jnp.sort((bits << width) | jnp.arange(count, dtype=bits.dtype)) & ((1 << width) - 1)
    return order.astype(jnp.int32)


def as_rows(tree: Any) -> Any:
    """Returns arrays [T, E, ...] as [T*E, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)
