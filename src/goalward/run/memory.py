"""Memory: what a run will take, and what to say when there is not enough."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from goalward.algos.base import Learner
from goalward.errors import UserError, brief

_WHAT_HELPS = (
    "use fewer seeds, environments (num_envs) or evaluation episodes (eval_episodes, --episodes), or smaller networks"
)


def require_memory(learner: Learner, num_seeds: int) -> None:
    """Raises if the state of all seeds alone is larger than the device; raises too for parts that do not fit together.

    Nothing is computed: a program that is far too large would not fail but take the process down.
    """
    state = jax.eval_shape(learner.init, jax.random.key(0))
    needed = num_seeds * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    available = device_memory()
    if needed > available:
        raise UserError(
            f"Training would keep {needed / 1e9:,.1f} GB, and the device has {available / 1e9:,.1f} GB; {_WHAT_HELPS}."
        )


def device_memory() -> int:
    """Returns the bytes of the accelerator, or of the machine where there is none."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def memory_explained() -> Iterator[None]:
    """Turns what JAX says when a device runs out of memory into a sentence."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) and "Out of memory" not in str(error):
            raise
        raise UserError(f"The device has too little memory for this; {_WHAT_HELPS}. {brief(error)}.") from error
