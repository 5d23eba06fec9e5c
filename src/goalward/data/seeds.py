"""Values that are one and the same for all seeds of a program.

Seeds are a `vmap` axis. A condition that differs along a batch turns `cond` into a selection that computes both
branches, and an index that differs turns a write in place into a scatter; these functions take the axis away.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


@jax.custom_batching.custom_vmap
def any_seed(flag: jax.Array) -> jax.Array:
    """Returns `flag`; under `vmap`, whether it is set anywhere in the batch, as one value for all."""
    return flag


@any_seed.def_vmap
def _any_in_batch(axis_size: int, in_batched: list[bool], flag: jax.Array) -> tuple[jax.Array, bool]:
    del axis_size, in_batched
    return any_seed(jnp.any(flag)), False


@jax.custom_batching.custom_vmap
def same_for_all_seeds(count: jax.Array) -> jax.Array:
    """Returns `count`; under `vmap`, the one value that all seeds have."""
    return count


@same_for_all_seeds.def_vmap
def _largest_in_batch(axis_size: int, in_batched: list[bool], count: jax.Array) -> tuple[jax.Array, bool]:
    del axis_size, in_batched
    return same_for_all_seeds(jnp.max(count)), False
