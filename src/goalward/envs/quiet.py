"""Imports of suites that print."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Returns a context in which nothing is printed, and after which `sys.stdout` is what it was before.

    JaxMARL prints when it is imported, and sets `sys.stdout` to `sys.__stdout__` on the way, which undoes both an
    ordinary redirection and the capture of a notebook or a test.
    """
    streams = {name: getattr(sys, name) for name in _STREAMS}
    with open(os.devnull, "w") as nowhere:
        for name in _STREAMS:
            setattr(sys, name, nowhere)
        try:
            yield
        finally:
            for name, stream in streams.items():
                setattr(sys, name, stream)
