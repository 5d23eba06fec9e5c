"""Rewards of SMAX, all for the team: every ally gets the same, the dead among them too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


class _TeamReward:
    """What the three have in common: +1 on a win."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def _pay(self, progress: jax.Array | float, next_state: Any) -> jax.Array:
        """Returns [N], `progress` [] and the win, for every ally."""
        return jnp.full(self._env.num_allies, progress + self._env.is_won(next_state).astype(jnp.float32))


class Dense(_TeamReward):
    """The suite's own: the health that the enemy lost, as a share of all it can have per unit, and +1 on a win."""

    name = "dense"

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [N]; a won episode sums to 2."""
        del action
        lost = (state.health - next_state.health) / self._env.max_health[state.unit_type]
        return self._pay(jnp.mean(lost[self._env.num_allies :]), next_state)


class DeathTriggered(_TeamReward):
    """The share of the enemies that died in this step, and +1 on a win."""

    name = "death_triggered"

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [N]; a won episode sums to 2."""
        del action
        died = (state.alive & ~next_state.alive)[self._env.num_allies :]
        return self._pay(jnp.mean(died, dtype=jnp.float32), next_state)


class Sparse(_TeamReward):
    """+1 on a win, otherwise nothing."""

    name = "sparse"

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [N]."""
        del state, action
        return self._pay(0.0, next_state)
