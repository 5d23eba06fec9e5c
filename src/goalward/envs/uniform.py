"""The uniform random policy, the yardstick of every task."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from goalward.envs.base import Discrete, GoalEnv

# (key, obs [..., N, D], goal [..., N, G], mask [..., N, A]) -> action for the environment
PolicyFn = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def uniform_policy(env: GoalEnv) -> PolicyFn:
    """Returns the policy that draws uniformly from the allowed actions."""
    space = env.spec.action_space

    def policy(key: jax.Array, obs: jax.Array, goal: jax.Array, mask: jax.Array) -> jax.Array:
        del goal
        if isinstance(space, Discrete):
            return jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf)).astype(jnp.int32)
        low, high = jnp.asarray(space.low), jnp.asarray(space.high)
        return jax.random.uniform(key, (*obs.shape[:-1], space.size), minval=low, maxval=high)

    return policy
