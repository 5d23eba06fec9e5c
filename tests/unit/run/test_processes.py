"""Where processes meet; what they do together is tested with two of them in tests/learning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.run.processes import Place, from_all, from_first, parse_place


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


def test_a_number_beyond_the_last_is_refused():
    with pytest.raises(gw.UserError, match="to number 2 processes from 0 to 1; found number 2"):
        parse_place("localhost:1234,2,2")


def test_a_process_that_has_computed_already_cannot_join(goalward):
    jax.block_until_ready(jnp.zeros(1))
    code, _, err = goalward("train", "--preset", "quick", "--join", "localhost:1,0,2")

    assert code == 2
    assert "could not be joined by 'localhost:1,0,2'" in err


def test_alone_a_process_is_the_first_and_the_only_one():
    assert from_first(lambda: "its own") == "its own"
    assert from_all(np.array([1.0, 2.0])).tolist() == [[1.0, 2.0]]
