"""Replay: the last C steps of E environments, as a ring over time, and hindsight goals drawn from it.

Whole trajectories are kept, in the order in which they happened, since a positive may lie many steps ahead of its
state. Nothing that is drawn crosses the end of an episode, nor the seam where the newest step meets the oldest.

Axes: C capacity in steps, T steps of a rollout, E environments, N agents, B environment steps in a minibatch.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from goalward.data.rollout import Rollout
from goalward.data.seeds import same_for_all_seeds
from goalward.envs.base import EnvSpec
from goalward.losses.relabel import Discount, episode_ids, remaining_steps, sample_offsets


class Memory(NamedTuple):
    """What is remembered of a step; [C, E, ...] in a replay, [B, ...] in a minibatch."""

    obs: jax.Array  # [..., N, D]
    action: jax.Array  # [..., N] or [..., N, A], in the head's own form
    action_mask: jax.Array  # [..., N, A]
    active: jax.Array  # [..., N]


class Replay(NamedTuple):
    """The ring; step number n of an environment lies in slot n modulo C."""

    memory: Memory  # [C, E, ...]
    next_achieved: jax.Array  # [C, E, N, G]
    done: jax.Array  # [C, E]
    num_added: jax.Array  # [] int32, steps of each environment so far


class Index(NamedTuple):
    """Where episodes end; rows are steps from the oldest to the newest."""

    oldest: jax.Array  # [] int32, the slot of the oldest step
    num_steps: jax.Array  # [] int32, how many there are
    remaining: jax.Array  # [C, E] int32, steps left in the episode, or up to the newest step
    episode: jax.Array  # [C, E] int32, equal within an episode


class Draw(NamedTuple):
    """A minibatch of steps with hindsight goals."""

    memory: Memory  # [B, ...]
    future_goal: jax.Array  # [B, N, G]
    episode: jax.Array  # [B], equal within an episode


def empty_replay(spec: EnvSpec, action: jax.ShapeDtypeStruct, num_envs: int, capacity: int) -> Replay:
    """Returns a replay without steps; `action` is what the head draws for one environment, [N, ...]."""
    steps, agents = (capacity, num_envs), spec.num_agents
    memory = Memory(
        obs=jnp.zeros((*steps, agents, spec.obs_dim)),
        action=jnp.zeros((*steps, *action.shape), action.dtype),
        action_mask=jnp.zeros((*steps, agents, spec.action_space.size), bool),
        active=jnp.zeros((*steps, agents), bool),
    )
    next_achieved = jnp.zeros((*steps, agents, spec.goal_dim))
    return Replay(memory, next_achieved, done=jnp.zeros(steps, bool), num_added=jnp.zeros((), jnp.int32))


def add(replay: Replay, rollout: Rollout) -> Replay:
    """Returns the replay with a rollout in the place of its oldest steps; C is a multiple of T."""
    num_steps = rollout.done.shape[0]
    slot = same_for_all_seeds(replay.num_added) % replay.done.shape[0]

    def write(ring: jax.Array, new: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(ring, new, slot, axis=0)

    return Replay(
        memory=jax.tree.map(write, replay.memory, _memory_of(rollout)),
        next_achieved=write(replay.next_achieved, rollout.next_achieved),
        done=write(replay.done, rollout.done),
        num_added=replay.num_added + num_steps,
    )


def index(replay: Replay) -> Index:
    """Returns where episodes end; the newest step ends what can be seen of its own."""
    capacity = replay.done.shape[0]
    num_added = same_for_all_seeds(replay.num_added)
    num_steps = jnp.minimum(num_added, capacity)
    oldest = jnp.where(num_added > capacity, num_added % capacity, 0)
    done = jnp.roll(replay.done, -oldest, axis=0)
    is_newest = (jnp.arange(capacity, dtype=jnp.int32) == num_steps - 1)[:, None]
    seen = done | jnp.broadcast_to(is_newest, done.shape)
    return Index(oldest, num_steps, remaining_steps(seen), episode_ids(seen))


def draw(
    replay: Replay, index: Index, key: jax.Array, batch_size: int, gamma: float | Discount, *, shuffled: bool = False
) -> Draw:
    """Returns B steps, all equally likely, each with a goal that every agent achieved later in the same episode.

    `shuffled` takes the goals from other environments, and so from other episodes, at unrelated times: a negative
    control. At the same time the others act by the same policy, and as that changes, what they do betrays what this
    one does.
    """
    key_time, key_env, key_offset, key_shift = jax.random.split(key, 4)
    capacity, num_envs = replay.done.shape
    num_agents = replay.next_achieved.shape[2]
    time = jax.random.randint(key_time, (batch_size,), 0, index.num_steps)
    env = jax.random.randint(key_env, (batch_size,), 0, num_envs)
    remaining = jnp.broadcast_to(index.remaining[time, env][:, None], (batch_size, num_agents))
    future = time[:, None] + sample_offsets(key_offset, remaining, gamma)
    agents = jnp.broadcast_to(jnp.arange(num_agents)[None, :], (batch_size, num_agents))
    goal_env = env
    if shuffled:
        future = jnp.roll(future, 1, axis=0)
        goal_env = (env + jax.random.randint(key_shift, (), 1, num_envs)) % num_envs
    slot, future_slot = (index.oldest + time) % capacity, (index.oldest + future) % capacity
    return Draw(
        memory=jax.tree.map(lambda x: x[slot, env], replay.memory),
        future_goal=replay.next_achieved[future_slot, goal_env[:, None], agents],
        episode=index.episode[time, env],
    )


def _memory_of(rollout: Rollout) -> Memory:
    return Memory(rollout.obs, rollout.action, rollout.action_mask, rollout.active)
