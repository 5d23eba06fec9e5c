"""Rollouts: the policy acts in E environments for T steps. The only place where an episode follows another.

Axes are [T, E, N, ...]: time, environments, agents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from goalward.data.seeds import any_seed
from goalward.data.starts import Starts, first_starts, refill, take_starts
from goalward.envs.base import Episode, GoalEnv, TimeStep, advance_episode, is_over, start_episode, won_share
from goalward.shards import join_envs, split_envs

# (key, obs [E,N,D], goal [E,N,G], mask [E,N,A]) -> (policy outputs, stored action, action for the environment)
ActFn = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]

# What a method wants to know of states [E, ...] in which episodes are cut off, while they can still be seen.
LookFn = Callable[[TimeStep], Any]


class Rollout(NamedTuple):
    """What happened, step by step."""

    obs: jax.Array  # [T, E, N, D]
    goal: jax.Array  # [T, E, N, G]
    action_mask: jax.Array  # [T, E, N, A]
    active: jax.Array  # [T, E, N], whether the action mattered
    policy_outputs: jax.Array  # [T, E, N, P], the behaviour policy, as its head reads it
    action: jax.Array  # [T, E, N] or [T, E, N, A], in the head's own form
    next_achieved: jax.Array  # [T, E, N, G], after the step and before any reset
    reward: jax.Array  # [T, E, N]
    terminated: jax.Array  # [T, E]
    truncated: jax.Array  # [T, E]
    success: jax.Array  # [T, E] float32, the share of the task that is solved; counts where an episode ended
    cut_off: Any = None  # [T, E, ...], what `look` made of the state after the step; counts where it truncated

    @property
    def done(self) -> jax.Array:
        """[T, E] bool, whether the episode ended with this step."""
        return self.terminated | self.truncated


class Worlds(NamedTuple):
    """E environments between two rollouts: the episodes under way and the starts of those to come."""

    episodes: Episode  # [E, ...]
    starts: Starts


def open_worlds(env: GoalEnv, key: jax.Array, num_envs: int) -> Worlds:
    """Returns E environments at the start of their first episodes."""
    starts, episodes = take_starts(first_starts(env, key, num_envs), jnp.ones(num_envs, bool))
    return Worlds(episodes, starts)


def start_episodes(env: GoalEnv, key: jax.Array, num_envs: int) -> Episode:
    """Returns E new episodes, stacked."""
    return split_envs(jax.vmap(lambda k: start_episode(env, k))(jax.random.split(key, num_envs)))


def advance_episodes(env: GoalEnv, key: jax.Array, episodes: Episode, actions: jax.Array) -> Episode:
    """Returns E episodes one step later."""
    keys = jax.random.split(key, actions.shape[0])
    keys, episodes, actions = split_envs((keys, episodes, actions))
    return split_envs(jax.vmap(lambda k, e, a: advance_episode(env, k, e, a))(keys, episodes, actions))


def collect(
    env: GoalEnv, act: ActFn, key: jax.Array, worlds: Worlds, num_steps: int, *, look: LookFn | None = None
) -> tuple[Worlds, Rollout]:
    """Returns the environments after `num_steps` steps, and all that happened."""

    def one_step(worlds: Worlds, keys: jax.Array) -> tuple[Worlds, Rollout]:
        key_act, key_step = keys
        episodes, starts = worlds
        episodes = split_envs(episodes)
        before = episodes.step
        outputs, action, env_action = act(key_act, before.obs, before.goal, before.action_mask)
        moved = advance_episodes(env, key_step, episodes, env_action)
        after = moved.step
        record = Rollout(
            obs=before.obs,
            goal=before.goal,
            action_mask=before.action_mask,
            active=before.active,
            policy_outputs=outputs,
            action=action,
            next_achieved=after.achieved,
            reward=after.reward,
            terminated=after.terminated,
            truncated=after.truncated,
            success=jax.vmap(won_share)(after),
            cut_off=None if look is None else _if_any(after.truncated, look, after),
        )
        over = is_over(after)
        starts, fresh = take_starts(refill(env, starts), over)
        return Worlds(split_envs(select(over, fresh, moved)), starts), record

    result = jax.lax.scan(one_step, worlds, jax.random.split(key, (num_steps, 2)))
    # Minibatches are drawn from all environments, and what is learned from them is the same everywhere.
    worlds, rollout = join_envs(result)
    return worlds, rollout


def _if_any(flags: jax.Array, function: Callable[[Any], Any], argument: Any) -> Any:
    """Returns the function's value, or zeros at no cost if no flag is set."""

    def nothing(argument: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, jax.eval_shape(function, argument))

    return jax.lax.cond(any_seed(jnp.any(flags)), function, nothing, argument)


def select(condition: jax.Array, if_true: Episode, if_false: Episode) -> Episode:
    """Returns a stacked episode that takes each row from one of two, by `condition` [E]."""

    def pick(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(pick, if_true, if_false)


def rollout_metrics(rollout: Rollout, worlds: Worlds) -> dict[str, jax.Array]:
    """Returns how the training episodes that ended in a rollout went; counts, since there may be none."""
    return {
        "rollout/episodes": jnp.sum(rollout.done, dtype=jnp.float32),
        "rollout/wins": jnp.sum(jnp.where(rollout.done, rollout.success, 0.0)),
        "rollout/active": jnp.mean(rollout.active, dtype=jnp.float32),
        "rollout/reused_starts": worlds.starts.num_reused.astype(jnp.float32),
    }
