"""Ctrl-C and termination signals: a flag that the training loop reads between calls, and a way out during a long one.

Python runs signal handlers between its own instructions only, so none runs while the device computes. The second
function listens where a signal is heard at once: the byte that Python's runtime writes for it.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ONE_REQUEST = 0.3  # seconds in which signals count as one: `timeout`, for one, sends its signal twice
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_caught: list[threading.Event] = []  # what signals set now, if anything


class _Requests:
    """Tells requests to stop apart, each of which may be several signals."""

    def __init__(self) -> None:
        self._last = -math.inf

    def is_new(self) -> bool:
        """Returns whether a signal that has just come is not part of the last request."""
        now = time.monotonic()
        if now < self._last + ONE_REQUEST:
            return False
        self._last = now
        return True


@contextmanager
def catch_interrupts() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C or a termination signal sets; a second one, later, raises `KeyboardInterrupt`.

    Within another such context it is the same event, so that what was asked for before is not forgotten.
    """
    if _caught or threading.current_thread() is not threading.main_thread():
        yield _caught[0] if _caught else threading.Event()
        return
    event, requests = threading.Event(), _Requests()

    def on_signal(number: int, frame: Any) -> None:
        del number, frame
        if not requests.is_new():
            return
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    _caught.append(event)
    try:
        yield event
    finally:
        _caught.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_interrupts() -> None:
    """Lets Ctrl-C and termination signals raise `KeyboardInterrupt` from now on, whatever they did before."""
    requests = _Requests()

    def on_signal(number: int, frame: Any) -> None:
        del number, frame
        if requests.is_new():
            raise KeyboardInterrupt

    for number in _SIGNALS:
        signal.signal(number, on_signal)


def disregard_interrupts() -> None:
    """Lets Ctrl-C and termination signals pass for the rest of the process, which is about to end by itself."""
    for number in _SIGNALS:
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
        count, requests = 0, _Requests()
        while count < 2:
            count += any(number in _SIGNALS for number in heard.recv(64)) and requests.is_new()
        time.sleep(grace)
        say()
        os._exit(exit_code)

    threading.Thread(target=watch, name="second-signal", daemon=True).start()
