"""Python's search for garbage, put off where it would look through a great deal and find hardly any."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_looking_for_garbage() -> Iterator[None]:
    """Returns a context in which Python does not look for garbage, or a decorator of a function that is run so.

    To import a suite, or to trace and to lower a program, makes objects by the million. Few of them are garbage, but
    all would be looked through again and again, which takes up to a quarter of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
