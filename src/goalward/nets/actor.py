"""An actor: observations as the networks see them, and actions as the environment expects them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from goalward.envs.base import EnvSpec
from goalward.nets.heads import Head
from goalward.nets.mlp import apply, in_compute_type
from goalward.nets.normalise import RunningStats, normalise


class Actor:
    """A policy network with what comes before it and after it, the same in training, evaluation and deployment."""

    def __init__(self, spec: EnvSpec, network: nn.Module, head: Head, *, norm_obs: bool, agent_id: bool) -> None:
        self._spec = spec
        self._network = network
        self._head = head
        self._norm_obs = norm_obs
        self._agent_id = agent_id and spec.num_agents > 1

    def observe(self, obs_stats: RunningStats, obs: jax.Array) -> jax.Array:
        """Returns [..., N, D'], normalised if that is on, the agent's index appended in a team."""
        if self._norm_obs:
            obs = normalise(obs_stats, obs)
        if self._agent_id:
            agents = self._spec.num_agents
            obs = jnp.concatenate([obs, jnp.broadcast_to(jnp.eye(agents), (*obs.shape[:-1], agents))], axis=-1)
        return obs

    def outputs(self, params: Any, obs_stats: RunningStats, obs: jax.Array, goal: jax.Array) -> jax.Array:
        """Returns [..., N, P], the network's outputs for raw observations [..., N, D] and goals [..., N, G]."""
        return apply(self._network, params, self.observe(obs_stats, obs), goal)

    def act_fn(
        self, params: Any, obs_stats: RunningStats
    ) -> Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]:
        """Returns how to act in a rollout: (key, obs, goal, mask) -> (outputs, sample, what the environment gets)."""
        params = in_compute_type(self._network, params)

        def act(
            key: jax.Array, obs: jax.Array, goal: jax.Array, mask: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            outputs = self.outputs(params, obs_stats, obs, goal)
            action = self._head.sample(key, outputs, mask)
            return outputs, action, self._head.to_env(action)

        return act

    def act(self, outputs: jax.Array, mask: jax.Array | None, key: jax.Array | None) -> jax.Array:
        """Returns actions for the environment: sampled with a key, the most probable ones without."""
        mask = self.allowed(outputs, mask)
        action = self._head.mode(outputs, mask) if key is None else self._head.sample(key, outputs, mask)
        return self._head.to_env(action)

    def allowed(self, outputs: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Returns [..., N, A], the mask that was given, or one that allows everything."""
        return jnp.ones((*outputs.shape[:-1], self._spec.action_space.size), bool) if mask is None else mask
