"""Where processes meet; what they do together is tested with two of them in tests/learning."""

import socket
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.run.meeting import Place, meet
from goalward.run.processes import from_all, from_first, in_all, parse_place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("localhost:1234,0,2", Place("localhost:1234", 0, 2)),
        ("10.0.0.7:80,3,4", Place("10.0.0.7:80", 3, 4)),
        ("[::1]:1234,0,1", Place("[::1]:1234", 0, 1)),
        ("auto", None),
    ],
)
def test_a_place_is_understood(text, place):
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text",
    ["", "localhost", "localhost:1234", "localhost,0,2", ":1234,0,2", "a:b,0,2", "a:1,0", "a:1,0,2,3", "a:1,-1,2"],
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


def test_a_process_that_has_computed_already_cannot_join(goalward, port):
    jax.block_until_ready(jnp.zeros(1))
    code, _, err = goalward("train", "--preset", "quick", "--join", f"localhost:{port},0,1")

    assert code == 2
    assert f"could not be joined by 'localhost:{port},0,1'" in err


def test_a_port_that_is_taken_and_a_host_that_is_unknown_are_named(goalward):
    with socket.create_server(("", 0)) as server:
        number = server.getsockname()[1]
        code, _, err = goalward("train", "--preset", "quick", "--join", f"localhost:{number},0,2")
    assert code == 2
    assert f"Expected port {number} to be free" in err

    code, _, err = goalward("train", "--preset", "quick", "--join", "no.such.host.invalid:1234,1,2")
    assert code == 2
    assert "Expected join to name the first process's host; 'no.such.host.invalid'" in err


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


@pytest.fixture
def meeting(port):
    """Returns a function from the numbers and counts of processes to what each is told, None if all is well."""

    def told(place):
        try:
            return meet(place, 5.0, lambda _: None)
        except gw.UserError as error:
            return str(error)

    def all_told(*numbers, host="localhost"):
        with ThreadPoolExecutor(len(numbers)) as pool:
            return list(pool.map(told, [Place(f"{host}:{port}", *pair) for pair in numbers]))

    return all_told


def test_processes_meet_in_any_order(meeting):
    assert meeting((2, 3), (0, 3), (1, 3)) == [None] * 3
    assert meeting((0, 2), (1, 2), host="127.0.0.1") == [None] * 2
    assert meeting((0, 1)) == [None]


def test_processes_that_do_not_fit_are_all_told(meeting):
    doubled = meeting((0, 3), (1, 3), (1, 3))
    assert len(set(doubled)) == 1
    assert "two processes say that they are number 1" in doubled[0]

    counting = meeting((0, 2), (1, 3))
    assert len(set(counting)) == 1
    assert "one process counts 3 of them, the first 2" in counting[0]


def test_strangers_are_passed_over(meeting, port):
    def visit():
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"", b"goalward 1\n"):
            while True:
                try:
                    with socket.create_connection(("localhost", port)) as stranger:
                        stranger.sendall(words)
                    break
                except ConnectionRefusedError:
                    continue

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(meeting, (0, 2))
        visit()
        assert meeting((1, 2)) == [None]
        assert first.result() == [None]


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
