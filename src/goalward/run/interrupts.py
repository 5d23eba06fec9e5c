"""Ctrl-C and termination signals, turned into a flag that the training loop reads between calls."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def catch_interrupts() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C or a termination signal sets; a second one raises `KeyboardInterrupt`."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def on_signal(number: int, frame: Any) -> None:
        del number, frame
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
