"""Rewards of Connector. Each agent's own reward is summed over the team, and every agent is given the sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_PENALTY = -0.03  # for each agent and step after which it is unconnected


class Dense:
    """+1 for connecting, -0.03 for a step after which the agent is still unconnected."""

    name = "dense"

    def __init__(self, env: Any) -> None:
        del env

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [N], the team's sum for everyone."""
        del action
        penalty = _PENALTY * (~next_state.connected).astype(jnp.float32)
        return _for_everyone(_connections(state, next_state) + penalty)


class NegativeDistance:
    """Minus the Manhattan distance to the target, in cells."""

    name = "negative_distance"

    def __init__(self, env: Any) -> None:
        del env

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [N], the team's sum for everyone."""
        del state, action
        return _for_everyone(-next_state.distance.astype(jnp.float32))


class OnConnection:
    """+1 for connecting, otherwise nothing."""

    name = "on_connection"

    def __init__(self, env: Any) -> None:
        del env

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [N], the team's sum for everyone."""
        del action
        return _for_everyone(_connections(state, next_state))


class Sparse:
    """+1 for every agent on the step after which all are connected, otherwise nothing; the sum is then N."""

    name = "sparse"

    def __init__(self, env: Any) -> None:
        del env

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [N], the team's sum for everyone."""
        del action
        completed = jnp.all(next_state.connected) & ~jnp.all(state.connected)
        return _for_everyone(jnp.full(next_state.connected.shape, completed, jnp.float32))


def _connections(state: Any, next_state: Any) -> jax.Array:
    return (next_state.connected & ~state.connected).astype(jnp.float32)


def _for_everyone(own: jax.Array) -> jax.Array:
    return jnp.broadcast_to(jnp.sum(own), own.shape)
