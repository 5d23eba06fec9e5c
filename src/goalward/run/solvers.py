"""Environments that solve linear systems, on several devices of one CPU.

In jaxlib 0.10 LAPACK's solvers of many systems at once run on a thread of the pool that all devices of a CPU share, and
wait there for other threads of it. Where every thread is taken by a device that solves, all wait for ever. Neither
0.9.2 nor 0.11.2 does that. A larger pool would help, and slow all training down by a quarter.

One device is safe as long as it solves one batch after the other; several that do not depend on each other can take all
threads of the pool as well, with or without goalward.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import jax
import jaxlib.version
from jax.sharding import Mesh

from goalward.envs.base import GoalEnv, advance_episode, start_episode
from goalward.envs.uniform import uniform_policy
from goalward.errors import UserError
from goalward.run.devices import asked_devices, num_cores

_VARIABLES = ("PJRT_NPROC", "NPROC")  # which set the size of the pool


def without_endless_waits(
    mesh: Mesh | None, env: GoalEnv, devices: int | None, say: Callable[[str], None]
) -> Mesh | None:
    """Returns the mesh to train on, None for one device where several might wait for ever; `devices` as for `train`.

    Says so, and raises where one device is not what was asked for.
    """
    if mesh is None or not _may_wait(mesh) or not _calls_lapack(env):
        return mesh
    reason = (
        f"jaxlib {jaxlib.version.__version__} may wait for ever where {len(mesh.local_devices)} devices of a CPU solve "
        f"linear systems at once, as {env.spec.name} does."
    )
    num_processes = jax.process_count()
    if asked_devices(devices) is None and num_processes == 1:
        say(f"One device: {reason}")
        return None
    raise UserError(
        f"{reason} Use one device in each process (--devices {num_processes}), or another JAX: 0.9.2, or 0.11.2."
    )


def _may_wait(mesh: Mesh) -> bool:
    """Returns whether the devices of this process can take all threads of their pool."""
    local = mesh.local_devices
    if not jaxlib.version.__version__.startswith("0.10.") or local[0].platform != "cpu":
        return False
    told = [int(os.environ[name]) for name in _VARIABLES if os.environ.get(name, "").isdecimal()]
    num_threads = max(told[0] if told else num_cores(), jax.local_device_count())
    return 1 < len(local) >= num_threads


def _calls_lapack(env: GoalEnv) -> bool:
    """Returns whether LAPACK has a part in an episode; in goalward's networks it has none."""

    def one_step(key: jax.Array) -> object:
        episode = start_episode(env, key)
        step = episode.step
        action = uniform_policy(env)(key, step.obs, step.goal, step.action_mask)
        return advance_episode(env, key, episode, action)

    return "lapack_" in jax.jit(one_step).lower(jax.random.key(0)).as_text()
