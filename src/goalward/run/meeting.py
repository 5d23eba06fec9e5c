"""Where the processes of a run meet before JAX joins them.

JAX ends a process without a sentence if another does not come, comes twice, or counts otherwise. So they first meet
over a plain socket at the same address: each says which one it is, and waits until the first has seen them all.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from goalward.errors import UserError, listed

_GREETING = "goalward"  # begins whatever is said; a line that does not is of some other program
_ALL_ARE_HERE = f"{_GREETING} all are here"
_MOST_BYTES = 1000  # of what one says
_SECONDS_TO_SPEAK = 5.0  # whoever connects and says nothing is none of ours


class Place(NamedTuple):
    """Where the processes meet, and which of them this one is."""

    address: str  # host:port of the first process
    number: int  # of this process, from 0
    num_processes: int

    @property
    def host(self) -> str:
        """Without the brackets of an IPv6 address."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Where the first process listens."""
        return int(self.address.rpartition(":")[2])


def meet(place: Place, seconds: float, say: Callable[[str], None]) -> None:
    """Returns when all processes are there; raises `UserError` in each if one is missing or they do not fit."""
    deadline = time.monotonic() + seconds
    if place.number == 0:
        _receive(place, deadline, say)
    else:
        _arrive(place, deadline)


def _receive(place: Place, deadline: float, say: Callable[[str], None]) -> None:
    """What the first process does: it waits for the others and answers all of them."""
    missing = set(range(1, place.num_processes))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listening(place.port))
        if missing:
            say(f"Waiting at {place.address} for {len(missing)} of {place.num_processes} processes.")
        guests: list[socket.socket] = []
        while missing:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                guest = stack.enter_context(server.accept()[0])
            except TimeoutError:
                _refuse(
                    guests, f"number {listed(sorted(missing), 'and')} of {place.num_processes} did not come in time"
                )
            words = _hear(guest, min(_SECONDS_TO_SPEAK, max(deadline - time.monotonic(), 0.01))).split()
            if len(words) != 3 or words[0] != _GREETING:
                continue
            guests.append(guest)
            if words[2] != str(place.num_processes):
                _refuse(guests, f"one process counts {words[2]} of them, the first {place.num_processes}")
            if words[1] not in map(str, missing):
                _refuse(guests, f"two processes say that they are number {words[1]}")
            missing.remove(int(words[1]))
        for guest in guests:
            guest.sendall(f"{_ALL_ARE_HERE}\n".encode())


def _arrive(place: Place, deadline: float) -> None:
    """What any other process does: it finds the first and waits for its answer."""
    while True:
        try:
            with socket.create_connection((place.host, place.port), timeout=_SECONDS_TO_SPEAK) as first:
                first.sendall(f"{_GREETING} {place.number} {place.num_processes}\n".encode())
                answer = _hear(first, max(deadline - time.monotonic(), 0.01) + _SECONDS_TO_SPEAK)
        except socket.gaierror as error:
            message = f"Expected join to name the first process's host; '{place.host}': {error.strerror}."
            raise UserError(message) from error
        except OSError:  # not there yet
            answer = ""
        if answer == _ALL_ARE_HERE:
            return
        if answer.startswith(_GREETING):
            raise UserError(answer.removeprefix(f"{_GREETING} "))
        if time.monotonic() > deadline:
            raise UserError(f"Expected the first process to listen at {place.address}; found nobody in time.")
        time.sleep(0.2)


def _listening(port: int) -> socket.socket:
    """Returns a server at the port, for both versions of the protocol where the machine has both."""
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        message = f"Expected port {port} to be free for the processes to meet at; {error.strerror}. Choose another."
        raise UserError(message) from error


def _hear(other: socket.socket, seconds: float) -> str:
    """Returns the line that the other process says, empty if it says none."""
    other.settimeout(seconds)
    said = b""
    with contextlib.suppress(OSError):
        while b"\n" not in said and len(said) < _MOST_BYTES:
            more = other.recv(_MOST_BYTES)
            if not more:
                return ""
            said += more
    line, end, _ = said.partition(b"\n")
    return line.decode(errors="replace") if end else ""


def _refuse(guests: list[socket.socket], reason: str) -> NoReturn:
    """Raises, in all processes that have come."""
    message = f"Expected all processes of a run to meet, each with a number of its own; {reason}."
    for guest in guests:
        with contextlib.suppress(OSError):
            guest.sendall(f"{_GREETING} {message}\n".encode())
    raise UserError(message)
