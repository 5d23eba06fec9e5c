"""Whole episodes of a fixed policy: every episode that is started counts, and counts once.

Running a fixed number of steps and taking the episodes that ended would favour short ones, which are mostly wins.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from goalward.data.rollout import advance_episodes, select, start_episodes
from goalward.envs.base import Episode, GoalEnv, is_over, won_share
from goalward.envs.uniform import PolicyFn


class EpisodeResults(NamedTuple):
    """How each of E episodes went."""

    success: jax.Array  # [E] float32, the share of the task that was solved
    ret: jax.Array  # [E] float32, sum of rewards over time, mean over agents
    length: jax.Array  # [E] int32
    metrics: dict[str, jax.Array]  # name -> [E] float32, what else the environment reports


def run_episodes(env: GoalEnv, policy: PolicyFn, key: jax.Array, num_episodes: int) -> EpisodeResults:
    """Returns the results of `num_episodes` episodes, all run side by side to their end."""
    key_start, key_run = jax.random.split(key)
    episodes = start_episodes(env, key_start, num_episodes)

    def unfinished(carry: tuple[Episode, jax.Array, jax.Array]) -> jax.Array:
        episodes, _, time = carry
        # A well-behaved environment ends by itself; the second condition ends the loop for one that does not.
        return ~jnp.all(is_over(episodes.step)) & (time < env.spec.max_steps)

    def one_step(carry: tuple[Episode, jax.Array, jax.Array]) -> tuple[Episode, jax.Array, jax.Array]:
        episodes, ret, time = carry
        key_act, key_step = jax.random.split(jax.random.fold_in(key_run, time))
        step = episodes.step
        over = is_over(step)
        action = policy(key_act, step.obs, step.goal, step.action_mask)
        moved = advance_episodes(env, key_step, episodes, action)
        ret = ret + jnp.where(over, 0.0, moved.step.reward.mean(-1))
        return select(over, episodes, moved), ret, time + 1

    start = (episodes, jnp.zeros(num_episodes), jnp.zeros((), jnp.int32))
    episodes, ret, _ = jax.lax.while_loop(unfinished, one_step, start)
    step = episodes.step
    success = jnp.where(is_over(step), jax.vmap(won_share)(step), 0.0)
    metrics = {name: value.astype(jnp.float32) for name, value in step.metrics.items()}
    return EpisodeResults(success, ret, episodes.elapsed, metrics)
