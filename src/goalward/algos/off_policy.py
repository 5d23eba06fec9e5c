"""What the off-policy contrastive methods share: trajectory replay, hindsight minibatches and the critic's update.

    for each iteration:
        collect T steps in E environments, and remember them           `act_fn`, `data.replay.add`
        for each gradient step:
            draw steps and later achieved goals of their episodes      `data.replay.draw`
            update phi and psi by InfoNCE                              `ContrastiveCritic.step`
            update whatever else the method has                        `improve`

Axes: T time, E environments, N agents, B environment steps in a minibatch.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import struct

from goalward.algos.base import Metrics
from goalward.algos.common import Params
from goalward.algos.contrastive import ContrastiveConfig, ContrastiveCritic, Pairs
from goalward.algos.settings import Count, Positive
from goalward.data.replay import Draw, Replay, add, draw, empty_replay, index
from goalward.data.rollout import ActFn, Rollout, Worlds, collect, open_worlds, rollout_metrics
from goalward.envs.base import LARGEST_COUNT, EnvSpec, GoalEnv
from goalward.errors import UserError
from goalward.nets.actor import Actor
from goalward.nets.mlp import check_networks
from goalward.nets.normalise import init_stats, update_stats


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(ContrastiveConfig):
    """Settings of replay; scale and networks as CPPO's, so that the methods can be compared."""

    replay_size: Count = 10_240  # steps of each environment that are remembered, a multiple of rollout_length
    replay_ratio: Positive = 1.0  # steps drawn from the replay for each step taken

    def validate(self) -> None:
        """Raises `UserError` for values that do not go together."""
        super().validate()
        if self.replay_size > LARGEST_COUNT:
            raise UserError(f"replay_size must be below 2^31; found {reprlib.repr(self.replay_size)}.")
        if self.replay_size % self.rollout_length:
            nearest = max(1, round(self.replay_size / self.rollout_length)) * self.rollout_length
            raise UserError(
                f"replay_size must be a multiple of rollout_length {self.rollout_length}; found {self.replay_size}, "
                f"the nearest that is one is {nearest}."
            )
        if self.replay_ratio * self.steps_per_iteration() > LARGEST_COUNT:
            raise UserError(
                f"replay_ratio times the steps of an iteration, {self.steps_per_iteration()}, must be below 2^31; "
                f"found {self.replay_ratio:g}."
            )

    def resolve(self, spec: EnvSpec) -> Self:
        """Returns the settings with every value that depends on the environment filled in."""
        self.check_fit(spec)
        return self

    def gradient_steps_per_iteration(self) -> int:
        """Returns the minibatches that are drawn for the steps of one iteration, at least one."""
        return max(1, round(self.replay_ratio * self.steps_per_iteration() / self.batch_size))


ConfigT = TypeVar("ConfigT", bound=OffPolicyConfig)


class State(struct.PyTreeNode):
    """Everything that training carries from one iteration to the next."""

    params: Params
    critic_opt: optax.OptState
    policy_opt: optax.OptState  # of whatever else the method learns
    replay: Replay
    worlds: Worlds  # E environments
    iteration: jax.Array  # [] int32
    key: jax.Array


class OffPolicyLearner(Generic[ConfigT]):
    """The common half of the learners; a method adds how it acts and what it learns besides the critic."""

    def __init__(self, config: ConfigT, env: GoalEnv, num_iterations: int) -> None:
        self.config = config
        self.env = env
        self.head = config.head(env.spec)
        self.networks = config.make_networks(self.head)
        self.actor = Actor(
            env.spec, self.networks.policy, self.head, norm_obs=config.norm_obs, agent_id=config.agent_id
        )
        self.critic = ContrastiveCritic(
            config, self.networks, self.head, config.optimizer(config.critic_lr, num_iterations)
        )
        self.num_envs = config.num_envs
        self.steps_per_iteration = config.steps_per_iteration()
        self.num_updates = config.gradient_steps_per_iteration()
        replay = jax.eval_shape(self._empty_replay)
        self.replay_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(replay))

    # What a method adds:

    def init_policy(self, key: jax.Array, obs: jax.Array, goal: jax.Array) -> tuple[Any, optax.OptState]:
        """Returns what is learned besides the critic, and the state of its optimisers."""
        raise NotImplementedError

    def act_fn(self, state: State) -> ActFn:
        """Returns how to act in a rollout."""
        raise NotImplementedError

    def improve(self, state: State, pairs: Pairs, batch: Draw, key: jax.Array) -> tuple[State, Metrics]:
        """Returns the state after a gradient step of all but the critic."""
        raise NotImplementedError

    # What they share:

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
        encoders = self.critic.init(key_phi, key_psi, obs, action, goal)
        policy, policy_opt = self.init_policy(key_policy, obs, goal)
        return State(
            params=Params(policy, encoders, obs_stats),
            critic_opt=self.critic.optimizer.init(encoders),
            policy_opt=policy_opt,
            replay=self._empty_replay(),
            worlds=worlds,
            iteration=jnp.zeros((), jnp.int32),
            key=key,
        )

    def iterate(self, state: State) -> tuple[State, Metrics]:
        """Returns the state after one iteration, and its metrics."""
        key, key_collect, key_updates = jax.random.split(state.key, 3)
        worlds, rollout = self._collect(state, key_collect)
        state = state.replace(replay=add(state.replay, rollout), worlds=worlds)
        where = index(state.replay)

        def update(state: State, key: jax.Array) -> tuple[State, Metrics]:
            key_draw, key_improve = jax.random.split(key)
            batch = draw(
                replay,
                where,
                key_draw,
                self.config.batch_size,
                self.config.gamma,
                shuffled=self.config.positives == "shuffled",
            )
            pairs = self._pairs(state.params, batch)
            encoders, critic_opt, critic_metrics = self.critic.step(state.params.critic, state.critic_opt, pairs)
            state = state.replace(params=state.params._replace(critic=encoders), critic_opt=critic_opt)
            state, metrics = self.improve(state, pairs, batch, key_improve)
            return state, critic_metrics | metrics

        # The replay does not change meanwhile, so it is no part of what the loop carries.
        replay = state.replay
        keys = jax.random.split(key_updates, self.num_updates)
        state, metrics = jax.lax.scan(update, state.replace(replay=None), keys)
        params = state.params
        if self.config.norm_obs:
            params = params._replace(obs_stats=update_stats(params.obs_stats, rollout.obs))
        norms = {
            "critic/param_norm": optax.tree.norm(params.critic),
            "policy/param_norm": optax.tree.norm(params.policy),
        }
        state = state.replace(params=params, replay=replay, iteration=state.iteration + 1, key=key)
        return state, jax.tree.map(jnp.mean, metrics) | norms | rollout_metrics(rollout, worlds)

    def _collect(self, state: State, key: jax.Array) -> tuple[Worlds, Rollout]:
        return collect(self.env, self.act_fn(state), key, state.worlds, self.config.rollout_length)

    def _pairs(self, params: Params, batch: Draw) -> Pairs:
        memory = batch.memory
        active = memory.active if self.config.mask_inactive else jnp.ones_like(memory.active)
        obs = self.actor.observe(params.obs_stats, memory.obs)
        return Pairs(obs, memory.action, batch.future_goal, active, batch.episode)

    def _empty_replay(self) -> Replay:
        spec, config = self.env.spec, self.config
        outputs = jnp.zeros((spec.num_agents, self.head.num_outputs))
        mask = jnp.ones((spec.num_agents, spec.action_space.size), bool)
        action = jax.eval_shape(self.head.sample, jax.random.key(0), outputs, mask)
        return empty_replay(spec, action, config.num_envs, config.replay_size)
