"""Devices: how the seeds of a run, and where asked for its environments, are laid over several of them.

Seeds never wait for each other, so they are split first, and by default nothing else is. Environments that are split
make their rollouts together; gradient steps, which take most of the time, are then the same on all devices.
"""

from __future__ import annotations

import math
import os

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from goalward.errors import UserError, plain_number
from goalward.shards import ENVS, SEEDS

DEVICES_VARIABLE = "GOALWARD_DEVICES"


def asked_devices(devices: int | None) -> int | None:
    """Returns how many devices were asked for, as an argument or in the environment; None leaves it open."""
    asked = plain_number(devices)
    name = "devices"
    if asked is None and os.environ.get(DEVICES_VARIABLE):
        name, text = DEVICES_VARIABLE, os.environ[DEVICES_VARIABLE]
        asked = int(text) if text.isdecimal() else text
    if asked is None or (type(asked) is int and asked >= 1):
        return asked
    raise UserError(f"{name} must be a whole number of at least 1; found {asked!r}.")


def make_mesh(num_seeds: int, num_envs: int, devices: int | None = None) -> Mesh | None:
    """Returns devices as a grid of seeds by environments, None where one is enough.

    Args:
        num_seeds: all seeds of the run.
        num_envs: environments of each.
        devices: how many devices; None takes as many as the seeds can be divided among.

    """
    visible = jax.devices()
    count = asked_devices(devices)
    if count is None:
        count = max(n for n in range(1, len(visible) + 1) if num_seeds % n == 0)
    if count > len(visible):
        kind = visible[0].platform
        more = f" JAX_NUM_CPU_DEVICES={count} makes more of the CPU." if kind == "cpu" else ""
        raise UserError(
            f"devices must be at most {len(visible)}, the number of {kind} devices that there are; found {count}.{more}"
        )
    if count == 1:
        return None
    by_seeds = math.gcd(count, num_seeds)
    by_envs = count // by_seeds
    if num_envs % by_envs:
        fitting = [n for n in range(1, len(visible) + 1) if num_envs % (n // math.gcd(n, num_seeds)) == 0]
        raise UserError(
            f"devices must divide the work: {count} devices would split {num_seeds} seeds in {by_seeds} and the "
            f"{num_envs} environments (num_envs) of each in {by_envs}, which does not go. "
            f"Use {_listed(fitting)} devices, or other seeds or environments."
        )
    grid = np.array(visible[:count]).reshape(by_seeds, by_envs)
    return Mesh(grid, (SEEDS, ENVS), axis_types=(AxisType.Auto, AxisType.Auto))


def layout(mesh: Mesh, num_seeds: int, num_envs: int) -> str:
    """Returns in words how the work is laid over the devices."""
    by_seeds, by_envs = mesh.shape[SEEDS], mesh.shape[ENVS]
    each = "1 seed" if num_seeds == by_seeds else f"{num_seeds // by_seeds} seeds"
    words = f"{mesh.size} devices ({mesh.devices.flat[0].device_kind}), {each} on each"
    return words + (f"; the {num_envs} environments of a seed are split over {by_envs}." if by_envs > 1 else ".")


def num_sharing(mesh: Mesh | None) -> int:
    """Returns how many of the devices share one memory: those that are made of one CPU."""
    return mesh.size if mesh is not None and mesh.devices.flat[0].platform == "cpu" else 1


def seeds_in_memory(mesh: Mesh | None, num_seeds: int) -> int:
    """Returns how many seeds a memory holds, those that several devices hold counted for each of them."""
    return num_seeds if mesh is None else num_seeds // mesh.shape[SEEDS] * num_sharing(mesh)


def _listed(numbers: list[int]) -> str:
    return " or ".join(", ".join(map(str, numbers)).rsplit(", ", 1))
