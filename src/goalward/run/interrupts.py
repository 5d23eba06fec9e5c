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

_caught: list[threading.Event] = []  # what signals set now, if anything


@contextmanager
def catch_interrupts() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C or a termination signal sets; a second one raises `KeyboardInterrupt`.

    Within another such context it is the same event, so that what was asked for before is not forgotten.
    """
    if _caught or threading.current_thread() is not threading.main_thread():
        yield _caught[0] if _caught else threading.Event()
        return
    event = threading.Event()

    def on_signal(number: int, frame: Any) -> None:
        del number, frame
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

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
        count = 0
        while count < 2:
            count += sum(number in (signal.SIGINT, signal.SIGTERM) for number in heard.recv(64))
        time.sleep(grace)
        say()
        os._exit(exit_code)

    threading.Thread(target=watch, name="second-signal", daemon=True).start()
