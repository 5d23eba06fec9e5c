"""Starts of episodes, drawn in batches ahead of need.

Under `vmap` a conditional reset runs for every environment at every step, and a reset can cost more than a step.
Here resets are drawn 3 E at a time into a pool and handed out one by one, so an episode costs about one reset: only
a pool that is refilled for its neighbours' sake draws some in vain. On a GPU a draw takes as long for many as for few,
and waits for whatever loops a reset has: the larger the pool, the rarer.

The n-th episode of a seed starts from `fold_in(key, n)`: every start is an independent draw with a goal of its own,
used once, and the same whether the seed trains alone or beside others.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from goalward.data.seeds import any_seed
from goalward.envs.base import Episode, GoalEnv, start_episode
from goalward.shards import join_envs, split_envs

_STARTS_PER_ENV = 4  # E of them are always at hand, the others are drawn together; checkpoints hold them all


class Starts(NamedTuple):
    """A ring of 4 E episodes that have not begun. Counts run over after 2^31 of them; their difference stays right."""

    key: jax.Array
    pool: Episode  # [4 E, ...]
    next_slot: jax.Array  # [] int32, of start number `num_used`; the others follow in their order
    num_drawn: jax.Array  # [] int32
    num_used: jax.Array  # [] int32
    num_reused: jax.Array  # [] int32, those that were handed out before they had been drawn, so for a second time


def first_starts(env: GoalEnv, key: jax.Array, num_envs: int) -> Starts:
    """Returns a full pool for E environments."""
    size = _STARTS_PER_ENV * num_envs
    pool = _draw(env, key, jnp.arange(size))
    none = jnp.int32(0)
    return Starts(key, pool, next_slot=none, num_drawn=jnp.int32(size), num_used=none, num_reused=none)


def take_starts(starts: Starts, wanted: jax.Array) -> tuple[Starts, Episode]:
    """Returns the pool, and a stacked episode [E, ...] that has the next unused starts in the rows `wanted` [E]."""
    size = starts.pool.elapsed.shape[0]
    place = jnp.cumsum(wanted, dtype=jnp.int32) - 1  # among the unused ones
    slots = (starts.next_slot + place) % size
    fresh = jax.tree.map(lambda x: x[slots], starts.pool)
    num_taken = jnp.sum(wanted, dtype=jnp.int32)
    num_reused = jnp.sum(wanted & (place >= starts.num_drawn - starts.num_used), dtype=jnp.int32)
    starts = starts._replace(
        next_slot=(starts.next_slot + num_taken) % size,
        num_used=starts.num_used + num_taken,
        num_reused=starts.num_reused + num_reused,
    )
    return starts, fresh


def refill(env: GoalEnv, starts: Starts) -> Starts:
    """Returns the pool with at least E unused starts, enough for every environment to end at once."""
    size = starts.pool.elapsed.shape[0]
    num_envs = size // _STARTS_PER_ENV
    num_unused = starts.num_drawn - starts.num_used

    def draw_more(starts: Starts) -> Starts:
        more = jnp.arange(size - num_envs, dtype=jnp.int32)
        # A pool that is refilled for its neighbours' sake may be too full for all of them; the rest is drawn later.
        fits = num_unused + more < size
        slots = jnp.where(fits, (starts.next_slot + num_unused + more) % size, size)
        drawn = _draw(env, starts.key, starts.num_drawn + more)
        pool = jax.tree.map(lambda old, new: old.at[slots].set(new, mode="drop"), starts.pool, drawn)
        return starts._replace(pool=pool, num_drawn=starts.num_drawn + jnp.sum(fits, dtype=jnp.int32))

    return jax.lax.cond(any_seed(num_unused < num_envs), draw_more, lambda starts: starts, starts)


def _draw(env: GoalEnv, key: jax.Array, numbers: jax.Array) -> Episode:
    # Drawn in parts and kept whole: any environment may take any start.
    drawn = jax.vmap(lambda n: start_episode(env, jax.random.fold_in(key, n)))(split_envs(numbers))
    return join_envs(split_envs(drawn))
