"""The reward of JaxNav, from states that hold `distance`, `reached`, `crashed` and `near`, each [N]."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


class Default:
    """The suite's own: arrival, progress, crash, time and closeness to obstacles, half of it shared with the team.

    With the suite's constants an agent's own part is +4 on arriving and until then 0.25 for each metre gained, -4 on
    crashing, -0.01 for a step until it has arrived or crashed, and -0.1 while something is within 0.1 m of its hull;
    it is given half of that and half of the team's mean.
    """

    name = "default"

    def __init__(self, env: Any) -> None:
        self._suite = env.suite

    def __call__(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """Returns [N]."""
        del action
        suite = self._suite
        gained = suite.weight_g * (state.distance - next_state.distance)
        own = jnp.where(next_state.reached, suite.goal_rew, gained) * ~state.reached
        own += suite.coll_rew * (next_state.crashed & ~state.crashed)
        own += suite.dt_rew * ~(state.reached | state.crashed)
        own += suite.lidar_rew * next_state.near
        return suite.rew_lambda * own + (1.0 - suite.rew_lambda) * jnp.mean(own)
