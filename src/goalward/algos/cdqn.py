"""CDQN, contrastive Q-learning: the critic is the policy.

    for each iteration:
        collect T steps in E environments, epsilon-greedy in Q(o, a, g*), and remember them   `act_fn`
        for each gradient step:
            draw steps with later achieved goals of their episodes                            `off_policy`
            update phi and psi by InfoNCE                                                     `off_policy`

Epsilon falls linearly. A trained policy is greedy whether it is asked to sample or not: there is no distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from goalward.algos.base import Metrics
from goalward.algos.common import Params
from goalward.algos.contrastive import Pairs
from goalward.algos.off_policy import OffPolicyConfig, OffPolicyLearner, State
from goalward.algos.settings import Share, Traced
from goalward.data.replay import Draw
from goalward.data.rollout import ActFn
from goalward.envs.base import GoalEnv
from goalward.errors import UserError


@dataclass(frozen=True, kw_only=True)
class CDQN(OffPolicyConfig):
    """Settings of CDQN."""

    name: ClassVar[str] = "cdqn"

    epsilon_start: Traced[Share] = 1.0  # share of random actions at the start
    epsilon_end: Traced[Share] = 0.05  # and once it has fallen
    epsilon_decay: Share = 0.5  # share of training over which it falls

    def validate(self) -> None:
        """Raises `UserError` for values that do not go together."""
        super().validate()
        if self.epsilon_end > self.epsilon_start:
            raise UserError(
                f"epsilon_end must not exceed epsilon_start {self.epsilon_start}; found {self.epsilon_end}."
            )

    def bind(self, env: GoalEnv, num_iterations: int) -> CDQNLearner:
        """Returns the learner for `env`; learning rates and epsilon follow from `num_iterations`."""
        return CDQNLearner(self.resolve(env.spec), env, num_iterations)


class CDQNLearner(OffPolicyLearner[CDQN]):
    """CDQN on one environment."""

    def __init__(self, config: CDQN, env: GoalEnv, num_iterations: int) -> None:
        super().__init__(config, env, num_iterations)
        decay_iterations = max(1, round(config.epsilon_decay * num_iterations))
        self.epsilon = optax.linear_schedule(config.epsilon_start, config.epsilon_end, decay_iterations)

    def init_policy(self, key: jax.Array, obs: jax.Array, goal: jax.Array) -> tuple[Any, optax.OptState]:
        """Returns nothing: actions follow from the critic."""
        del key, obs, goal
        return (), ()

    def act_fn(self, state: State) -> ActFn:
        """Returns how to act in a rollout: at random with probability epsilon, else greedily."""

        def act(
            key: jax.Array, obs: jax.Array, goal: jax.Array, mask: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            key_which, key_random = jax.random.split(key)
            q = self.q_values(state.params, obs, goal)
            explore = jax.random.bernoulli(key_which, self.epsilon(state.iteration), q.shape[:-1])
            action = jnp.where(explore, self.head.sample(key_random, jnp.zeros_like(q), mask), self.head.mode(q, mask))
            return q, action, self.head.to_env(action)

        return act

    def q_values(self, params: Params, obs: jax.Array, goal: jax.Array) -> jax.Array:
        """Returns [..., A], Q of every action for raw observations."""
        nothing = jnp.zeros((*obs.shape[:-1], self.head.num_outputs))
        every_action, _ = self.head.support(jax.random.key(0), nothing, self.actor.allowed(nothing, None), 1)
        q = self.critic.q_values(params.critic, self.actor.observe(params.obs_stats, obs), every_action, goal)
        return jnp.moveaxis(q, 0, -1)

    def improve(self, state: State, pairs: Pairs, batch: Draw, key: jax.Array) -> tuple[State, Metrics]:
        """Returns the state as it is: the critic is all there is to learn."""
        del pairs, batch, key
        return state, {"policy/epsilon": self.epsilon(state.iteration)}

    def act(
        self,
        params: Params,
        obs: jax.Array,
        goal: jax.Array,
        mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns greedy actions for obs [..., N, D] and goal [..., N, G]; see the module's docstring on `key`."""
        del key
        return self.actor.act(self.q_values(params, obs, goal), mask, None)

    def value(self, params: Params, obs: jax.Array, goal: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Returns Q [..., N] of the best allowed action; see `Learner.value`."""
        q = self.q_values(params, obs, goal)
        return jnp.max(jnp.where(self.actor.allowed(q, mask), q, -jnp.inf), axis=-1)
