"""Where the processes of a run meet before JAX joins them.

JAX ends a process without a sentence if another does not come, comes twice, or counts otherwise. So they first meet
over a plain socket at the same address: each says which one it is, and waits until the first has seen them all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from goalward.errors import UserError, listed

_GREETING = "goalward"  # begins whatever is said; a line that does not is of some other program
_ALL_ARE_HERE = f"{_GREETING} all are here"
_MOST_BYTES = 1000  # of what one says
_MOST_AT_THE_DOOR = 4096  # others come as soon as the first listens; it must still get in itself before it hears them
_MOST_NAMED = 8  # of the processes that are missing
_SECONDS_TO_ANSWER = 5.0  # of somebody who is there
_SECONDS_OF_SILENCE = 10.0  # before a process says that it does not find the first


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
    if place.number == 0:
        _receive(place, seconds, say)
    else:
        _arrive(place, seconds, say)


def _receive(place: Place, seconds: float, say: Callable[[str], None]) -> None:
    """What the first process does: it waits for the others, and for itself, and answers all of them."""
    deadline = time.monotonic() + seconds
    with _listening(place.port) as server, _connection(place) as itself:
        _greet(itself, place)
        with _Reception(server, place, say) as reception:
            reception.wait_for_first(time.monotonic() + _SECONDS_TO_ANSWER)
            if place.num_processes > 1:
                say(f"Waiting at {place.address} for {place.num_processes - 1} of {place.num_processes} processes.")
            reception.wait_for_all(deadline)


class _Reception:
    """Those who have come to the first process, and what they have said; they are told how it ended when it does."""

    def __init__(self, server: socket.socket, place: Place, say: Callable[[str], None]) -> None:
        self._server = server
        self._place = place
        self._say = say
        self._ready = selectors.DefaultSelector()
        self._said: dict[socket.socket, bytes] = {}  # by all who are connected
        self._guests: dict[socket.socket, int] = {}  # those who have said their number

    def __enter__(self) -> _Reception:
        self._server.setblocking(False)
        self._ready.register(self._server, selectors.EVENT_READ)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        told = str(error) if isinstance(error, UserError) else _do_not_meet("the first was stopped")
        for guest in self._guests:
            with contextlib.suppress(OSError):
                guest.sendall((f"{_GREETING} {told}" if error else _ALL_ARE_HERE).encode() + b"\n")
        self._ready.close()
        for visitor in self._said:
            visitor.close()

    def wait_for_first(self, deadline: float) -> None:
        """Returns when the first process, which this is, has come to its own address."""
        while 0 in self._missing():
            if time.monotonic() > deadline:
                raise UserError(
                    f"Expected the first process to run at {self._place.address}; somebody else answers there. Give "
                    "the number 0 to the process of that host, and to no other."
                )
            self._listen(deadline)

    def wait_for_all(self, deadline: float) -> None:
        """Returns when all are here."""
        while missing := self._missing():
            if time.monotonic() > deadline:
                more = [f"{len(missing) - _MOST_NAMED} more"] if len(missing) > _MOST_NAMED else []
                who = listed([*missing[:_MOST_NAMED], *more], "and")
                raise UserError(_do_not_meet(f"number {who} of {self._place.num_processes} did not come in time"))
            self._listen(deadline)

    def _missing(self) -> list[int]:
        return sorted(set(range(self._place.num_processes)) - set(self._guests.values()))

    def _listen(self, deadline: float) -> None:
        """Returns as soon as somebody came, spoke or left, at the deadline at the latest."""
        for key, _ in self._ready.select(max(deadline - time.monotonic(), 0.0)):
            if key.data is None:
                self._open()
            else:
                self._hear(key.data)

    def _open(self) -> None:
        try:
            visitor = self._server.accept()[0]
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                return  # it was gone at once
            raise UserError(
                f"Expected to hear {self._place.num_processes} processes at once; the first may open no more files "
                f"than it has for {len(self._said)}. Raise its limit (ulimit -n)."
            ) from error
        visitor.setblocking(False)
        _ask_whether_it_lives(visitor)
        self._said[visitor] = b""
        self._ready.register(visitor, selectors.EVENT_READ, visitor)

    def _hear(self, visitor: socket.socket) -> None:
        more = b""
        with contextlib.suppress(OSError):
            more = visitor.recv(_MOST_BYTES)
        self._said[visitor] += more
        line, end, _ = self._said[visitor].partition(b"\n")
        if not more or len(self._said[visitor]) > _MOST_BYTES:
            self._dismiss(visitor)
        elif end and visitor not in self._guests:
            self._welcome(visitor, line.decode(errors="replace").split())

    def _welcome(self, visitor: socket.socket, words: list[str]) -> None:
        if len(words) != 3 or words[0] != _GREETING or not all(word.isdecimal() for word in words[1:]):
            self._dismiss(visitor)
            return
        number, count, known = int(words[1]), int(words[2]), set(self._guests.values())
        self._guests[visitor] = number
        if count != self._place.num_processes:
            raise UserError(_do_not_meet(f"one process counts {count} of them, the first {self._place.num_processes}"))
        if number in known:
            raise UserError(_do_not_meet(f"two processes say that they are number {number}"))

    def _dismiss(self, visitor: socket.socket) -> None:
        self._ready.unregister(visitor)
        del self._said[visitor]
        visitor.close()
        number = self._guests.pop(visitor, None)
        if number is not None:
            self._say(f"Number {number} of {self._place.num_processes} processes is gone; waiting for it.")


def _arrive(place: Place, seconds: float, say: Callable[[str], None]) -> None:
    """What any other process does: it finds the first and waits for its answer."""
    began, is_told = time.monotonic(), False
    deadline = began + seconds
    while True:
        answer = ""
        with contextlib.suppress(OSError), _connection(place) as first:  # or not there yet, or gone
            _greet(first, place)
            # The first came before it could be found, so it answers within the time that it waits itself.
            answer = _line_from(first, time.monotonic() + seconds + _SECONDS_TO_ANSWER)
        if answer == _ALL_ARE_HERE:
            return
        if answer.startswith(_GREETING):
            raise UserError(answer.removeprefix(f"{_GREETING} "))
        if time.monotonic() > deadline:
            raise UserError(f"Expected the first process to listen at {place.address}; found nobody in time.")
        if time.monotonic() > began + _SECONDS_OF_SILENCE and not is_told:
            say(f"Looking for the first process at {place.address}.")
            is_told = True
        time.sleep(0.2)


@contextlib.contextmanager
def _connection(place: Place) -> Iterator[socket.socket]:
    """Yields a connection to the first process, which must reach itself at its address as well: JAX will later."""
    try:
        connection = socket.create_connection((place.host, place.port), timeout=_SECONDS_TO_ANSWER)
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not the name of one"
        raise UserError(f"Expected join to name the first process's host; '{place.host}': {reason}.") from error
    except OSError as error:
        if place.number > 0:
            raise
        raise UserError(
            f"Expected the first process to run at {place.address}; it cannot reach itself there "
            f"({error.strerror or error})."
        ) from error
    with connection:
        if connection.getsockname() == connection.getpeername():
            # Nobody listens: the system drew the very same port for this side, and so connected it to itself.
            raise ConnectionRefusedError
        yield connection


def _ask_whether_it_lives(other: socket.socket) -> None:
    """Lets the system notice within twenty seconds that the other's machine or network is gone, which says nothing."""
    patience = {"TCP_KEEPIDLE": 5, "TCP_KEEPALIVE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # the first two are one
    with contextlib.suppress(OSError):  # it is gone already
        other.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in patience.items():
            if hasattr(socket, name):  # each system has its own
                other.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _greet(first: socket.socket, place: Place) -> None:
    first.sendall(f"{_GREETING} {place.number} {place.num_processes}\n".encode())


def _line_from(other: socket.socket, deadline: float) -> str:
    """Returns the line that the other process says, empty if it says none."""
    said = b""
    while b"\n" not in said and len(said) < _MOST_BYTES:
        other.settimeout(max(deadline - time.monotonic(), 0.01))
        more = other.recv(_MOST_BYTES)
        if not more:
            return ""
        said += more
    return said.partition(b"\n")[0].decode(errors="replace")


def _listening(port: int) -> socket.socket:
    """Returns a server at the port, for both versions of the protocol where the machine has both."""
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=_MOST_AT_THE_DOOR, dualstack_ipv6=True
            )
        return socket.create_server(("", port), backlog=_MOST_AT_THE_DOOR)
    except OSError as error:
        raise UserError(
            f"Expected port {port} to be free for the processes to meet at; {os.strerror(error.errno or 0)}. Choose "
            "another, unless a second process was given the number 0."
        ) from error


def _do_not_meet(reason: str) -> str:
    return f"Expected all processes of a run to meet, each with a number of its own; {reason}."
