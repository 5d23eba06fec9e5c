"""The axes along which a program is split over devices, and where in it environments are.

In a program that does not split its environments `split_envs` and `join_envs` do nothing.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

SEEDS, ENVS = "seeds", "envs"  # the axes of a mesh of devices


def split_envs(tree: Any) -> Any:
    """Returns arrays [E, ...] as they are, each device with the rows of its own environments."""
    parts = num_parts()
    if parts == 1:
        return tree

    def split(x: jax.Array) -> jax.Array:
        # A number of episodes that is no multiple of the devices, as in an evaluation, is not split.
        return x if x.shape[0] % parts else jax.lax.with_sharding_constraint(x, PartitionSpec(ENVS))

    return jax.tree.map(split, tree)


def join_envs(tree: Any) -> Any:
    """Returns arrays as they are, whole on every device that has a part of the environments."""
    if num_parts() == 1:
        return tree
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec()), tree)


def num_parts() -> int:
    """Returns over how many devices the environments of the program that is being traced are split."""
    mesh = jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return mesh.shape[ENVS] if types.get(ENVS) is AxisType.Auto else 1
