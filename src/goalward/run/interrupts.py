"""Ctrl-C and termination signals: a flag that the training loop reads between calls, and a way out during a long one.

Python runs signal handlers between its own instructions only, so none runs while the device computes. The second
function listens where a signal is heard at once: the byte that Python's runtime writes for it.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ONE_REQUEST = 0.3  # seconds in which signals count as one: `timeout`, for one, sends its signal twice
_caught: list[threading.Event] = []  # what signals set now, if anything


@contextmanager
def catch_interrupts() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C or a termination signal sets; a second one, later, raises `KeyboardInterrupt`.

    Within another such context it is the same event, so that what was asked for before is not forgotten.
    """
    if _caught or threading.current_thread() is not threading.main_thread():
        yield _caught[0] if _caught else threading.Event()
        return
    event, asked_at = threading.Event(), 0.0

    def on_signal(number: int, frame: Any) -> None:
        nonlocal asked_at
        del number, frame
        if not event.is_set():
            asked_at = time.monotonic()
            event.set()
        elif time.monotonic() >= asked_at + ONE_REQUEST:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    _caught.append(event)
    try:
        yield event
    finally:
        _caught.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def disregard_interrupts() -> None:
    """Lets Ctrl-C and termination signals pass for the rest of the process, which is about to end by itself."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, under which no second signal would be heard


def is_interrupted() -> bool:
    """Returns whether a signal has been caught that nothing has come of yet."""
    return any(event.is_set() for event in _caught)


def leave_at_second_signal(say: Callable[[], None], exit_code: int, grace: float = 2.0) -> None:
    """Ends the process soon after the second Ctrl-C or termination signal, whatever it is doing.

    For a process of our own only, from its main thread. It has `grace` seconds to come to an end by itself; then `say`
    is called and it ends as if killed, which costs what was not yet saved.
    """
    heard, told = socket.socketpair()
    told.setblocking(False)
    signal.set_wakeup_fd(told.detach(), warn_on_full_buffer=False)  # detached: open as long as the process

    def watch() -> None:
        asked_at: list[float] = []
        while not asked_at or asked_at[-1] < asked_at[0] + ONE_REQUEST:
            if set(heard.recv(64)) & {signal.SIGINT, signal.SIGTERM}:
                asked_at.append(time.monotonic())
        time.sleep(grace)
        say()
        os._exit(exit_code)

    threading.Thread(target=watch, name="second-signal", daemon=True).start()
