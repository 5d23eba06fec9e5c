"""How long compiled functions take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax


def call_seconds(function: Callable[[], Any], repeats: int) -> list[float]:
    """Returns the seconds of several calls, after one that compiles."""
    jax.block_until_ready(function())
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(function())
        seconds.append(time.perf_counter() - began)
    return seconds
