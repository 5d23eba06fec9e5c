"""Where processes meet; what they do together is tested with two of them in tests/exact."""

import contextlib
import gc
import socket
import struct
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.errors import PartnerLost
from goalward.run.meeting import Place, meet
from goalward.run.processes import from_all, from_first, in_all, parse_place, require_same


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("localhost:1234,0,2", Place("localhost:1234", 0, 2)),
        ("10.0.0.7:80,3,4", Place("10.0.0.7:80", 3, 4)),
        ("[::1]:1234,0,1", Place("[::1]:1234", 0, 1)),
        ("[fe80::1%eth0]:1234,0,1", Place("[fe80::1%eth0]:1234", 0, 1)),
        ("localhost:00000000001234,00000000001,2", Place("localhost:1234", 1, 2)),
        ("auto", None),
    ],
)
def test_a_place_is_understood(text, place):
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "localhost:1234",
        "localhost,0,2",
        ":1234,0,2",
        "::1:1234,0,2",
        "[]:1234,0,2",
        "[::1:1234,0,2",
        "[localhost]:1234,0,2",
        "localhost]:1234,0,2",
        "a:b,0,2",
        "a:1,0",
        "a:1,0,2,3",
        "a:1,-1,2",
    ],
)
def test_what_is_no_place_is_refused(goalward, text):
    code, out, err = goalward("train", "--preset", "quick", f"--join={text}")

    assert (code, out) == (2, "")
    assert "Expected join to be HOST:PORT,K,N, where the first process listens" in err
    assert f"found {text!r}" in err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("localhost:1234,2,2", "K from 0 to N - 1; found 2, 2"),
        ("localhost:1234,0,0", "N from 1 to 10000 and K from 0 to N - 1; found 0, 0"),
        (f"localhost:1234,0,{10**20}", f"N from 1 to 10000 and K from 0 to N - 1; found 0, {10**20}"),
        ("localhost:99999,0,2", "a port from 1 to 65535; found 99999"),
        (f"localhost:{10**20},0,2", f"a port from 1 to 65535; found {10**20}"),
        ("localhost:0,0,2", "a port from 1 to 65535; found 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(text, sentence):
    with pytest.raises(gw.UserError, match=sentence):
        parse_place(text)


@pytest.fixture
def port():
    """Returns a port that nobody listens at."""
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_has_computed_already_is_refused_before_it_waits(goalward, port, monkeypatch, number):
    monkeypatch.setattr("goalward.run.processes._SECONDS_TO_MEET", 0.5)
    jax.block_until_ready(jnp.zeros(1))
    code, out, err = goalward("train", "--preset", "quick", "--join", f"localhost:{port},{number},2")

    assert (code, out) == (2, "")
    assert f"could not be joined by 'localhost:{port},{number},2', since this one has computed something" in err


@pytest.fixture
def nothing_computed(monkeypatch):
    """Lets processes meet although JAX has started in this one."""
    monkeypatch.setattr("goalward.run.processes._has_started", lambda: False)


@pytest.mark.usefixtures("nothing_computed")
def test_a_port_that_is_taken_and_a_host_that_is_unknown_are_named(goalward, port):
    with socket.create_server(("", 0)) as server:
        number = server.getsockname()[1]
        code, _, err = goalward("train", "--preset", "quick", "--join", f"localhost:{number},0,2")
    assert code == 2
    assert f"Expected port {number} to be free for the processes to meet at; Address already in use. Choose" in err

    for number, host in ((0, "no.such.host.invalid"), (1, "no.such.host.invalid"), (1, "a..b")):
        code, _, err = goalward("train", "--preset", "quick", "--join", f"{host}:{port},{number},2")
        assert code == 2
        assert f"Expected join to name the first process's host; '{host}'" in err


def test_the_first_process_must_run_where_the_others_look_for_it(port, monkeypatch):
    monkeypatch.setattr("goalward.run.meeting._SECONDS_TO_ANSWER", 0.2)
    with pytest.raises(gw.UserError, match=f"the first process to run at 192.0.2.1:{port}; it cannot reach itself"):
        meet(Place(f"192.0.2.1:{port}", 0, 2), 5.0, print)  # an address that nobody ever has


def test_another_machines_first_process_is_not_this_one(port, monkeypatch):
    """As where number 0 is given to a process of another host than the one that is named."""
    monkeypatch.setattr("goalward.run.meeting._SECONDS_TO_ANSWER", 0.2)
    with socket.create_server(("localhost", 0)) as elsewhere:
        real = socket.create_connection
        monkeypatch.setattr("socket.create_connection", lambda _, timeout: real(elsewhere.getsockname(), timeout))
        assert f"to run at localhost:{port}; somebody else answers there" in told(Place(f"localhost:{port}", 0, 2))


@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.parametrize(
    ("number", "sentence"),
    [(0, "number 1 of 2 did not come in time"), (1, "Expected the first process to listen at localhost:{port}; found")],
)
def test_a_process_that_never_comes_is_missed(goalward, port, monkeypatch, number, sentence):
    monkeypatch.setattr("goalward.run.processes._SECONDS_TO_MEET", 0.5)
    code, out, err = goalward("train", "--preset", "quick", "--join", f"localhost:{port},{number},2")

    assert code == 2
    assert sentence.format(port=port) in err
    assert out == ("" if number else f"Waiting at localhost:{port} for 1 of 2 processes.\n")


def test_of_many_that_never_come_a_few_are_named(port):
    sentence = told(Place(f"localhost:{port}", 0, 1000), 0.1)
    assert "number 1, 2, 3, 4, 5, 6, 7, 8 and 991 more of 1000 did not come in time" in sentence


def told(place, seconds=5.0, say=lambda _: None):
    """Returns what a process is told when all have met, None if all is well."""
    try:
        return meet(place, seconds, say)
    except gw.UserError as error:
        return str(error)


@pytest.fixture
def meeting(port):
    """Returns a function from the numbers and counts of processes to what each is told."""

    def all_told(*numbers, host="localhost"):
        with ThreadPoolExecutor(len(numbers)) as pool:
            return list(pool.map(told, [Place(f"{host}:{port}", *pair) for pair in numbers]))

    return all_told


@pytest.fixture
def visit(port):
    """Returns a function that connects to the first process as soon as it listens, and says something."""

    def connected(words):
        deadline = time.monotonic() + 5.0
        while True:
            try:
                visitor = socket.create_connection(("localhost", port))
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                continue
            visitor.sendall(words)
            return visitor

    return connected


def test_processes_meet_in_any_order(meeting):
    assert meeting((2, 3), (0, 3), (1, 3)) == [None] * 3
    assert meeting((0, 2), (1, 2), host="127.0.0.1") == [None] * 2
    assert meeting((0, 1)) == [None]


def has_ipv6():
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6")
def test_processes_meet_at_an_address_of_ipv6(meeting):
    assert meeting((0, 2), (1, 2), host="[::1]") == [None] * 2


def test_processes_that_do_not_fit_are_all_told(meeting):
    doubled = meeting((0, 3), (1, 3), (1, 3))
    assert len(set(doubled)) == 1
    assert "two processes say that they are number 1" in doubled[0]

    counting = meeting((0, 2), (1, 3))
    assert len(set(counting)) == 1
    assert "one process counts 3 of them, the first 2" in counting[0]


def test_strangers_are_passed_over_and_hold_nobody_up(meeting, visit):
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        first = pool.submit(meeting, (0, 2))
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"goalward 1\n", b"goalward x y\n", b"x" * 2000):
            visit(words).close()
        for words in (b"", b"goalw"):  # these stay, and say no more
            stack.enter_context(visit(words))
        began = time.monotonic()
        assert meeting((1, 2)) == [None]
        assert first.result() == [None]
        assert time.monotonic() - began < 4.0  # less than anybody waits


def test_the_system_is_asked_whether_a_guest_still_lives(port, monkeypatch):
    """Of a machine that is switched off nobody would hear otherwise."""
    visitors, found = [], []
    accept = socket.socket.accept
    monkeypatch.setattr(socket.socket, "accept", lambda server: visitors.append(accept(server)) or visitors[-1])

    def look(sentence):
        found.extend(visitor.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for visitor, _ in visitors)

    assert "did not come in time" in told(Place(f"localhost:{port}", 0, 2), 0.1, look)
    assert found == [1]


def test_a_stranger_who_talks_without_end_is_shown_out(visit, port):
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(told, Place(f"localhost:{port}", 0, 2))
        with visit(b"x" * 2000) as stranger, contextlib.suppress(ConnectionResetError):
            stranger.settimeout(4.0)
            assert stranger.recv(1) == b""
        told(Place(f"localhost:{port}", 1, 2))
        assert first.result() is None


def test_a_process_that_may_open_no_more_files_says_so(port):
    """In a process of its own, since the limit is the whole process's."""
    script = f"""
import resource
from goalward.run.meeting import Place, meet
def leave_no_file(sentence):
    with open("/dev/null") as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno(), last.fileno()))
    print(sentence, flush=True)
meet(Place("localhost:{port}", 0, 60), 5.0, leave_no_file)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=PIPE, stderr=PIPE, text=True) as first:
        assert first.stdout.readline().startswith("Waiting")
        with socket.create_connection(("localhost", port)):
            assert "the first may open no more files than it has for 1. Raise" in first.communicate(timeout=20)[1]


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_process_that_leaves_is_waited_for(meeting, visit, port, is_reset):
    said = []
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(told, Place(f"localhost:{port}", 0, 3), say=said.append)
        while not said and not first.done():  # until it waits for others
            time.sleep(0.01)
        guest = visit(b"goalward 1 3\n")
        if is_reset:  # closes without a farewell, as a process that is killed may
            guest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        guest.close()
        while len(said) < 2 and not first.done():
            time.sleep(0.01)
        assert meeting((2, 3), (1, 3)) == [None] * 2
        assert first.result() is None
    assert said[1:] == ["Number 1 of 3 processes is gone; waiting for it."]


def test_who_does_not_find_the_first_process_says_so_once(port, monkeypatch):
    monkeypatch.setattr("goalward.run.meeting._SECONDS_OF_SILENCE", 0.1)
    sentences = []

    assert "found nobody in time" in told(Place(f"localhost:{port}", 1, 2), 1.0, sentences.append)
    assert sentences == [f"Looking for the first process at localhost:{port}."]


def test_who_has_found_the_first_process_waits_as_long_as_that_does(port):
    first, early, late = (Place(f"localhost:{port}", number, 3) for number in range(3))
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(told, first, 5.0)]
        answers.append(pool.submit(told, early, 0.5))
        time.sleep(1.0)
        answers.append(pool.submit(told, late, 5.0))
        assert [answer.result() for answer in answers] == [None] * 3


def test_a_first_process_that_is_stopped_tells_the_others(visit, port):
    def stop(sentence):
        if "gone" in sentence:
            raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(meet, Place(f"localhost:{port}", 0, 4), 5.0, stop)
        other = pool.submit(told, Place(f"localhost:{port}", 2, 4))
        time.sleep(0.5)
        visit(b"goalward 1 4\n").close()
        assert "the first was stopped" in other.result()
        assert isinstance(first.exception(), KeyboardInterrupt)


def test_a_connection_to_oneself_is_not_the_first_process(port, monkeypatch):
    """Where nobody listens the system may draw the address's own port for the side that connects."""

    def connect_to_itself(address, timeout):
        both = socket.socket()
        both.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        both.bind(("127.0.0.1", port))
        both.connect(("127.0.0.1", port))
        return both

    monkeypatch.setattr("socket.create_connection", connect_to_itself)
    assert "found nobody in time" in told(Place(f"127.0.0.1:{port}", 1, 2), 0.1)


def test_another_program_at_the_address_is_not_the_first_process(port):
    def answer(server):
        with server.accept()[0] as visitor:
            visitor.sendall(b"SSH-2.0-OpenSSH\n")

    with socket.create_server(("localhost", port)) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(answer, server)
        with pytest.raises(gw.UserError, match="Expected the first process to listen"):
            meet(Place(f"localhost:{port}", 1, 2), 0.1, lambda _: None)


def test_alone_a_process_is_the_first_and_the_only_one():
    assert from_first(lambda: "its own") == "its own"
    assert from_all(np.array([1.0, 2.0])).tolist() == [[1.0, 2.0]]
    assert in_all(lambda: "done") == "done"
    with pytest.raises(KeyError):
        in_all(lambda: {}["missing"])


@pytest.mark.parametrize("do", [in_all, from_first])
def test_a_process_that_fails_says_why_although_another_is_lost(monkeypatch, do):
    def lost(value, choose):
        raise PartnerLost("one is gone")

    monkeypatch.setattr("goalward.run.processes.count", lambda: 2)
    monkeypatch.setattr("goalward.run.processes._exchanged", lost)
    with pytest.raises(KeyError, match="missing"):
        do(lambda: {}["missing"])
    with pytest.raises(PartnerLost, match="one is gone"):
        do(lambda: "done")


@pytest.mark.parametrize(
    ("of_first", "own", "sentence"),
    [
        ("a = 1\nb = 2", "a = 1\nb = 3", " The first has 'b = 2', this one 'b = 3'."),
        ("[run]\na = 1", "[env]\nsize = 11\n[run]\na = 1", " The first has nothing of the kind, this one 'size = 11'."),
        ("[env]\nsize = 11\n[run]", "[run]", " The first has 'size = 11', this one nothing of the kind."),
        ("[a]\nx = 1\n[b]\nx = 2", "[a]\nx = 2\n[b]\nx = 1", ""),  # no line of which tells them apart
    ],
)
def test_processes_are_told_what_differs(monkeypatch, of_first, own, sentence):
    monkeypatch.setattr("goalward.run.processes.count", lambda: 2)
    monkeypatch.setattr("goalward.run.processes.from_all", lambda differs: np.array([False, differs]))
    versions = [f"goalward {gw.__version__}", f"jax {jax.__version__}"]
    monkeypatch.setattr("goalward.run.processes.from_first", lambda make: [*of_first.splitlines(), *versions])
    with pytest.raises(gw.UserError) as told:
        require_same(own)
    assert str(told.value).endswith(f"found another in number 1.{sentence}")

    require_same(of_first)
    monkeypatch.setattr("goalward.run.processes.__version__", "0.0.1")
    with pytest.raises(gw.UserError, match=f"The first has 'goalward {gw.__version__}', this one 'goalward 0.0.1'"):
        require_same(of_first)


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("do", [in_all, from_first])
def test_a_failure_leaves_nothing_behind_for_the_collector(monkeypatch, do, num_processes):
    """What failed may hold most of a device's memory, and the user may try again with less."""

    class Large:
        pass

    def fail():
        held = Large()
        alive.append(weakref.ref(held))
        raise gw.UserError("too large")

    alive = []
    monkeypatch.setattr("goalward.run.processes.count", lambda: num_processes)
    monkeypatch.setattr("goalward.run.processes._exchanged", lambda value, choose: choose(np.asarray(value)[None]))
    gc.disable()
    try:
        with contextlib.suppress(gw.UserError):
            do(fail)
        assert [held() for held in alive] == [None]
    finally:
        gc.enable()
