"""Goals of SMAX: no enemy is left. All are made from the enemies' health as far as an ally can know it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def known_health(env: Any, state: Any) -> jax.Array:
    """Returns [N, E], the health of every enemy, in [0, 1], as it counts for every ally.

    An enemy in sight counts with its health and one out of sight with full health. Two exceptions make the target
    reachable: a dead enemy counts as zero for everybody, since the enemy that falls last is out of sight of most
    allies, and an ally that is dead itself, and sees nothing, gets the true healths.
    """
    allies, enemies = slice(None, env.num_allies), slice(env.num_allies, None)
    health = (state.health / env.max_health[state.unit_type])[None, enemies]
    offset = state.position[allies, None] - state.position[None, enemies]
    in_sight = jnp.linalg.norm(offset, axis=-1) < env.sight_range[state.unit_type[allies], None]
    known = in_sight | ~state.alive[allies, None] | ~state.alive[None, enemies]
    return jnp.where(known, health, 1.0)


class _Zero:
    """What the three have in common: the target is zero."""

    dim: int

    def __init__(self, env: Any) -> None:
        self._env = env

    def target(self, state: Any) -> jax.Array:
        """Returns [N, G] zeros."""
        del state
        return jnp.zeros((self._env.num_allies, self.dim))


class ZeroTotalHealth(_Zero):
    """Bring the enemy's total health to zero: one number, the mean of what is left."""

    name = "zero_total_health"
    dim = 1

    def achieved(self, state: Any) -> jax.Array:
        """Returns [N, 1] in [0, 1]."""
        return jnp.mean(known_health(self._env, state), axis=-1, keepdims=True)


class ZeroHealth(_Zero):
    """Bring the health of every enemy to zero: one number for each of them."""

    name = "zero_health"

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.dim = env.num_enemies

    def achieved(self, state: Any) -> jax.Array:
        """Returns [N, E] in [0, 1]."""
        return known_health(self._env, state)


class ZeroAliveEnemies(_Zero):
    """Leave no enemy alive: one number, the share of them that live; those out of sight count as alive."""

    name = "zero_alive_enemies"
    dim = 1

    def achieved(self, state: Any) -> jax.Array:
        """Returns [N, 1] in [0, 1]."""
        return jnp.mean(known_health(self._env, state) > 0.0, axis=-1, keepdims=True, dtype=jnp.float32)
