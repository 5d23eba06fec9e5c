"""Several processes that train one run together, each with devices of its own, on one machine or on many.

All of them run the same command and take the same steps, since a computation on devices of all needs all of them. The
first alone reads and writes the run directory and prints; it tells the others what they have to know. With a single
process, which is then the first, the functions of this module do what they say without asking anybody.
"""

from __future__ import annotations

import functools
import ipaddress
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from goalward import __version__
from goalward.errors import GoalwardError, PartnerLost, UserError, brief, listed, whole_number
from goalward.run.devices import start
from goalward.run.interrupts import catch_interrupts, is_interrupted
from goalward.run.meeting import Place, meet
from goalward.run.memory import memory_explained, says_out_of_memory

T = TypeVar("T")
_MOST_PROCESSES, _MOST_PORTS = 10_000, 65_535
_SECONDS_TO_MEET = 300
_SECONDS_TO_JOIN = 60  # those who have met, and have nothing else to do
_MOST_BYTES_GATHERED = 2**28  # at once; a larger array, as of a replay, row by row


def parse_place(text: str) -> Place | None:
    """Returns the place that `HOST:PORT,K,N` names, None for `auto`.

    >>> parse_place("node1:1234,0,2")
    Place(address='node1:1234', number=0, num_processes=2)
    """
    if text == "auto":
        return None
    address, *numbers = text.split(",") if isinstance(text, str) else [""]
    host, _, port = address.rpartition(":")
    read = [number for number in map(whole_number, (port, *numbers)) if number is not None]
    if not _is_host(host) or len(numbers) != 2 or len(read) != 3:
        raise UserError(
            "Expected join to be HOST:PORT,K,N, where the first process listens and this one is number K, counted "
            f"from 0, of N, or auto to ask the cluster; found {text!r}."
        )
    port_number, number, num_processes = read
    if not 1 <= num_processes <= _MOST_PROCESSES or number >= num_processes:
        raise UserError(
            f"Expected join to have N from 1 to {_MOST_PROCESSES} and K from 0 to N - 1; found {', '.join(numbers)}."
        )
    if not 1 <= port_number <= _MOST_PORTS:
        raise UserError(f"Expected join to name a port from 1 to {_MOST_PORTS}; found {port}.")
    return Place(f"{host}:{port_number}", number, num_processes)


def _is_host(text: str) -> bool:
    """Returns whether this may be a name, an address of IPv4, or one of IPv6 in brackets."""
    if not text.startswith("["):
        return bool(text) and not set(text) & set(":]")
    try:
        ipaddress.IPv6Address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return text.endswith("]")


@contextmanager
def joined(text: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """Starts JAX, before anything is computed: together with the other processes, or alone for None.

    Within the context signals are heard by all processes together, when they next do something `in_all`: the others
    would wait for one that left by itself.
    """
    if text is None:
        start()
        yield
        return
    place = parse_place(text)
    if _has_started():
        raise UserError(
            f"The processes could not be joined by '{text}', since this one has computed something already."
        )
    if place is not None:
        meet(place, _SECONDS_TO_MEET, say)
        if place.number == 0:
            say("All processes are here.")
    with catch_interrupts():
        jax.config.update("jax_enable_preemption_service", False)  # it would hear termination signals in our place
        try:
            if place is None:
                jax.distributed.initialize()
            else:
                jax.distributed.initialize(
                    place.address, place.num_processes, place.number, initialization_timeout=_SECONDS_TO_JOIN
                )
        except (RuntimeError, ValueError) as error:  # no cluster
            hint = " Where JAX finds no cluster, name the processes: HOST:PORT,K,N." if place is None else ""
            raise UserError(f"The processes could not be joined by '{text}'; {brief(error)}.{hint}") from error
        start()
        in_all(lambda: None)  # at once: whoever comes half a minute late to the first exchange is given up
        yield


def _has_started() -> bool:
    """Returns whether JAX has started, after which it can no longer be joined to others."""
    setting = "jax_num_cpu_devices"  # not to be changed any more once JAX has started
    before = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    try:
        jax.config.update(setting, before + 1)
    except RuntimeError:
        return True
    jax.config.update(setting, before)
    return False


def count() -> int:
    """Returns how many processes there are."""
    return jax.process_count()


def is_first() -> bool:
    """Returns whether this is the process that writes and prints."""
    return jax.process_index() == 0


def require_same(what: str) -> None:
    """Raises in all processes if they were not given the same, said in lines, or are not of the same versions."""
    if count() == 1:
        return
    own = [*what.splitlines(), f"goalward {__version__}", f"jax {jax.__version__}"]
    of_first = from_first(lambda: own)
    others = np.flatnonzero(from_all(own != of_first))
    if not len(others):
        return
    raise UserError(
        "Expected all processes of a run to be given the same command; found another in number "
        f"{listed(others, 'and')}.{_difference(of_first, own)}"
    )


def _difference(of_first: list[str], own: list[str]) -> str:
    """Returns a sentence on the first line that one of two texts has and the other has not, headings aside."""

    def only_in(lines: list[str], others: list[str]) -> str | None:
        return next((line for line in lines if line not in others and not line.startswith("[")), None)

    theirs, ours = only_in(of_first, own), only_in(own, of_first)
    if theirs is None and ours is None:
        return ""
    parts = [f"'{line}'" if line is not None else "nothing of the kind" for line in (theirs, ours)]
    return f" The first has {parts[0]}, this one {parts[1]}."


def in_all(make: Callable[[], T]) -> T:
    """Returns what `make` returns in this process; raises in all if it fails or was interrupted in any."""
    try:
        value, failure = make(), None
    except (Exception, KeyboardInterrupt) as error:  # whatever it is, the others have to hear of it
        failure = error
    stopped = is_interrupted() or isinstance(failure, KeyboardInterrupt)
    with _own_failure_first(failure):
        of_all = from_all([failure is not None, stopped])
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # or error and frame would keep each other alive, and arrays with them
    if of_all[:, 1].any():
        raise KeyboardInterrupt
    failed = np.flatnonzero(of_all[:, 0])
    if len(failed):
        raise UserError(f"Expected all processes to begin; number {listed(failed, 'and')} did not, and says why.")
    return value


@contextmanager
def _own_failure_first(failure: BaseException | None) -> Iterator[None]:
    """Passes over the loss of another process where this one has failed too, and has that to say."""
    try:
        yield
    except PartnerLost:
        if failure is None:
            raise


def from_first(make: Callable[[], T]) -> T:
    """Returns in all processes what `make` returns in the first, the only one to call it; errors reach all as well.

    It may return what JSON can hold, and what JSON makes of it is what all of them get.
    """
    if count() == 1:
        return make()
    told, failure = "", None
    if is_first():
        try:
            told = json.dumps({"value": make()})
        except (Exception, KeyboardInterrupt) as error:  # whatever it is, the others wait for an answer
            text = str(error) if isinstance(error, GoalwardError) else brief(error)
            kind = {"is_users": isinstance(error, UserError), "is_interrupt": isinstance(error, KeyboardInterrupt)}
            told, failure = json.dumps({"error": text, **kind}), error
    with _own_failure_first(failure):
        answer = json.loads(_bytes_from_first(told.encode()))
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # as above
    if "error" in answer:
        if answer["is_interrupt"]:
            raise KeyboardInterrupt
        raise (UserError if answer["is_users"] else GoalwardError)(answer["error"])
    value: T = answer["value"]
    return value


def arrays_from_first(tree: Any) -> Any:
    """Returns in all processes the arrays of the host that the first has; those of the others have their shapes."""
    if count() == 1:
        return tree

    def tell(x: Any) -> Any:
        # As bytes: the sum that the values travel in would turn -0.0 into 0.0.
        content = np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8)
        return _of_first(content).view(x.dtype).reshape(x.shape)

    return jax.tree.map(tell, tree)


def from_all(value: Any) -> Any:
    """Returns what every process has, [P, ...]."""
    if count() == 1:
        return np.asarray(value)[None]
    return _exchanged(value, _all)


def to_host(tree: Any) -> Any:
    """Returns arrays of the host, whole also where other processes hold parts of them."""

    def fetch(x: Any) -> Any:
        if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
            return np.asarray(x)
        if x.nbytes > _MOST_BYTES_GATHERED:  # every device holds for a moment what is gathered
            return np.stack([multihost_utils.process_allgather(x[i], tiled=True) for i in range(x.shape[0])])
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(fetch, tree)


@contextmanager
def losses_explained() -> Iterator[None]:
    """Turns what JAX says when another process is gone into a sentence."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # which of them depends on where it is noticed
        is_of_exchange = any(library in str(error) for library in ("Gloo", "NCCL"))
        if count() == 1 or not is_of_exchange or says_out_of_memory(error):
            raise
        raise PartnerLost(f"Expected the other processes to answer; one is gone. {brief(error)}.") from error


def acquaint(mesh: Mesh | None) -> None:
    """Lets devices of several processes exchange something along each axis of their mesh.

    Those that never have give each other up after half a minute, and processes may come further apart than that while
    they compile.
    """
    if mesh is None or count() == 1:
        return
    everywhere = PartitionSpec(mesh.axis_names)

    def exchange(x: jax.Array) -> list[jax.Array]:
        return [jax.lax.psum(x, axis) for axis in mesh.axis_names]

    numbers = np.arange(mesh.size)
    split = NamedSharding(mesh, everywhere)
    values = jax.make_array_from_callback(numbers.shape, split, lambda part: numbers[part])
    exchange_all = jax.shard_map(exchange, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    with memory_explained(), losses_explained():
        jax.block_until_ready(jax.jit(exchange_all)(values))


def _bytes_from_first(text: bytes) -> bytes:
    size = int(_of_first(np.int32(len(text))))
    padded = np.zeros(1 << size.bit_length(), np.uint8)  # few sizes, since each is compiled for
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    return bytes(_of_first(padded)[:size])


def _of_first(value: Any) -> np.ndarray[Any, Any]:
    """Returns the first process's value, which has the same shape and type in all."""
    return _exchanged(value, _first)


def _all(values: jax.Array) -> jax.Array:
    return values


def _first(values: jax.Array) -> jax.Array:
    return values[0]


def _exchanged(value: Any, choose: Callable[[jax.Array], jax.Array]) -> np.ndarray[Any, Any]:
    """Returns what `choose` makes of the values of all processes, [P, ...]."""
    value = np.asarray(value)
    split, chosen = _exchange(choose)
    values = jax.make_array_from_process_local_data(split, value[None], (count(), *value.shape))
    with losses_explained():
        return np.asarray(chosen(values).addressable_data(0))


@functools.cache
def _exchange(choose: Callable[[jax.Array], jax.Array]) -> tuple[NamedSharding, Callable[[jax.Array], jax.Array]]:
    """Returns how values are laid over one device of each process, and a program of all that chooses from them.

    JAX's own functions for this want as many devices in one process as in another.
    """
    mesh = Mesh(np.array([jax.local_devices(process)[0] for process in range(count())]), ("processes",))
    whole = NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, PartitionSpec("processes")), jax.jit(choose, out_shardings=whole)
