"""Devices: how the seeds of a run, and where asked for its environments, are laid over several of them.

Seeds never wait for each other, so they are split first, and by default nothing else is. Environments that are split
make their rollouts together; gradient steps, which take most of the time, are then the same on all devices.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from goalward.backend import default_device, has_default_device, is_gpu
from goalward.errors import UserError, counted, listed, plain_number, whole_number
from goalward.shards import ENVS, SEEDS

DEVICES_VARIABLE = "GOALWARD_DEVICES"
MOST_CPU_DEVICES = 1024  # that anybody would make of a CPU


def asked_devices(devices: int | None) -> int | None:
    """Returns how many devices were asked for, as an argument or in the environment; None leaves it open."""
    asked = plain_number(devices)
    if _asked_by(devices) == DEVICES_VARIABLE:
        text = os.environ[DEVICES_VARIABLE]
        number = whole_number(text)
        asked = text if number is None else number
    if asked is None or (type(asked) is int and asked >= 1):
        return asked
    raise UserError(f"{_asked_by(devices)} must be a whole number of at least 1; found {asked!r}.")


def _asked_by(devices: int | None) -> str:
    """Returns the name of what says how many."""
    return DEVICES_VARIABLE if devices is None and os.environ.get(DEVICES_VARIABLE) else "devices"


def num_cores() -> int:
    """Returns the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start() -> None:
    """Starts JAX; raises `UserError` where it cannot, as where it is told to use a GPU and has none."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        # Where nothing for a GPU is installed JAX asserts that there is, and says no more.
        first_line = str(error).strip().partition("\n")[0]
        reason = (
            re.split(r" \((?:set JAX_PLATFORMS|you may need)", first_line)[0].rstrip(".") or "it finds no such device"
        )
        if "topologies" in reason:  # what each process tells the others of its devices
            raise UserError("Expected all processes to start JAX; another did not in time, and says why.") from error
        told: str | None = jax.config.jax_platforms  # type: ignore[attr-defined]
        if not told:
            raise UserError(
                f"JAX could not start; {reason}. Mend what it names, or set JAX_PLATFORMS=cpu to do without."
            ) from error
        raise UserError(
            f"JAX could not start with JAX_PLATFORMS={told}; {reason}. Leave JAX_PLATFORMS unset to use what there "
            "is; for a GPU install goalward[cuda] and the driver of the device."
        ) from error
    if is_gpu():
        # Its first use takes more than a second, in which this process has suites to import and programs to trace. Not
        # a daemon: Python must not exit under it.
        threading.Thread(target=_use, args=(default_device(),), name="first-use").start()


def _use(device: jax.Device) -> None:
    with contextlib.suppress(Exception):  # whoever needs the device is told
        jax.block_until_ready(jax.device_put(0.0, device))


def make_mesh(num_seeds: int, num_envs: int, devices: int | None = None) -> Mesh | None:
    """Returns devices as a grid of seeds by environments, None where one is enough.

    Args:
        num_seeds: all seeds of the run.
        num_envs: environments of each.
        devices: how many devices; None takes as many as the seeds can be divided among, or the one that the user has
            made JAX's default.

    """
    kind = default_device().platform if has_default_device() else None  # more of what the user has chosen
    visible = _of_processes(kind)
    bare = next((p for p, shown in enumerate(visible) if not shown), None)
    if bare is not None:
        raise UserError(
            f"Expected every process to have devices of the kind that was made JAX's default, {kind}; number {bare} "
            "shows none. Leave jax_default_device unset where processes are joined."
        )
    together = len(visible)  # every process takes part, with as many devices as the others
    most = together * min(map(len, visible))
    possible = range(together, most + 1, together)
    fitting = [n for n in possible if num_envs % _by_envs(n, num_seeds) == 0]
    count = asked_devices(devices)
    if count is None and together == 1 and has_default_device():
        return None
    if count is None:
        # Environments only where several processes leave no other way.
        by_seeds_alone = [n for n in fitting if num_seeds % n == 0]
        count = max(by_seeds_alone or fitting, default=together)
    _check_count(_asked_by(devices), count, possible, visible[0][0].platform)
    if count == 1:
        return None
    by_envs = _by_envs(count, num_seeds)
    if count not in fitting:
        name = "The number of processes" if asked_devices(devices) is None else _asked_by(devices)
        words = "1 device" if fitting == [1] else f"{listed(fitting, 'or')} devices"
        others = f"{words}, or other" if fitting else "another number of processes,"
        raise UserError(
            f"{name} must divide the work: {count} devices would train {counted(num_seeds, 'seed')} in "
            f"{counted(count // by_envs, 'group')} of {by_envs}, which cannot share the {num_envs} environments "
            f"(num_envs) of a seed evenly. Use {others} seeds or environments."
        )
    grid = np.array([local[: count // together] for local in visible]).reshape(-1, by_envs)
    return Mesh(grid, (SEEDS, ENVS), axis_types=(AxisType.Auto, AxisType.Auto))


def _by_envs(count: int, num_seeds: int) -> int:
    """Returns in how many parts the environments of a seed are split."""
    return count // math.gcd(count, num_seeds)


def _of_processes(kind: str | None) -> list[list[jax.Device]]:
    """Returns the devices of every process, of one kind or of the machine's best."""
    devices = jax.devices(kind)
    return [[device for device in devices if device.process_index == p] for p in range(jax.process_count())]


def _check_count(name: str, count: int, possible: range, kind: str) -> None:
    if count in possible:
        return
    together, most = possible.step, possible[-1]
    if together > 1:
        raise UserError(
            f"{name} must be a multiple of {together}, the number of processes, and at most {most}, since each takes "
            f"part with as many {kind} devices as the one that has fewest ({most // together}); found {count}."
        )
    can_have_more = kind == "cpu" and count <= MOST_CPU_DEVICES
    more = f" JAX_NUM_CPU_DEVICES={count}, set before JAX starts, makes more of the CPU." if can_have_more else ""
    raise UserError(f"{name} must be at most {most}, the number of {kind} devices that there are; found {count}.{more}")


def layout(mesh: Mesh, num_seeds: int, num_envs: int) -> str:
    """Returns in words how the work is laid over the devices."""
    by_seeds, by_envs = mesh.shape[SEEDS], mesh.shape[ENVS]
    each = counted(num_seeds // by_seeds, "seed")
    words = f"{mesh.size} devices ({mesh.devices.flat[0].device_kind}), {each} on each"
    return words + (f"; the {num_envs} environments of a seed are split over {by_envs}." if by_envs > 1 else ".")


def num_sharing(mesh: Mesh | None) -> int:
    """Returns how many of the devices share one memory: those that are made of one CPU."""
    return len(mesh.local_devices) if mesh is not None and mesh.local_devices[0].platform == "cpu" else 1


def seeds_in_memory(mesh: Mesh | None, num_seeds: int) -> int:
    """Returns how many seeds a memory holds, those that several devices hold counted for each of them."""
    return num_seeds if mesh is None else num_seeds // mesh.shape[SEEDS] * num_sharing(mesh)


def seeds_on_host(mesh: Mesh | None, num_seeds: int) -> int:
    """Returns of how many seeds the host holds states when a checkpoint is made, copies counted as well."""
    if default_device().platform != "cpu":
        return num_seeds
    # What one device of a CPU holds is the host's as it is.
    return num_seeds if mesh is None else num_seeds + seeds_in_memory(mesh, num_seeds)
