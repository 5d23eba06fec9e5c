"""Imports of suites that print and compute."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import jax

_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Returns a context in which nothing is printed, and after which `sys.stdout` is what it was before.

    JaxMARL prints when it is imported, and sets `sys.stdout` to `sys.__stdout__` on the way, which undoes both an
    ordinary redirection and the capture of a notebook or a test. It also computes the constants of all its
    environments, a small program each, which a CPU compiles in a fraction of the time that a GPU takes.
    """
    streams = {name: getattr(sys, name) for name in _STREAMS}
    with open(os.devnull, "w") as nowhere:
        for name in _STREAMS:
            setattr(sys, name, nowhere)
        try:
            with jax.default_device(_cpu()):
                yield
        finally:
            for name, stream in streams.items():
                setattr(sys, name, stream)


def _cpu() -> jax.Device | None:
    """Returns the CPU, None where JAX was told to do without it."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None
