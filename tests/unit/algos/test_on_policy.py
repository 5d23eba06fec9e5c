"""What PPO and CPPO share."""

import jax
import numpy as np
import pytest
from scipy import stats

import goalward as gw
from goalward.algos.on_policy import next_divisor, random_order


def test_minibatches_hold_every_row_once_and_each_is_anywhere_with_the_same_probability():
    config = gw.PPO(num_envs=4, rollout_length=3, batch_size=4, hidden_sizes=(16,))
    learner = config.bind(gw.make("toy/rooms"), 10)
    epochs = np.asarray(jax.jit(jax.vmap(learner.minibatches))(jax.random.split(jax.random.key(0), 6000)))

    assert epochs.shape == (6000, 3, 4)
    orders = epochs.reshape(6000, 12)
    np.testing.assert_array_equal(np.sort(orders), np.broadcast_to(np.arange(12), orders.shape))
    for row in (0, 11):
        places = np.bincount((orders == row).argmax(-1), minlength=12)
        assert stats.chisquare(places).pvalue > 1e-3
    # Neighbours are no likelier to stay neighbours than chance has it: 22 of the 132 pairs of places.
    first, second = ((orders == row).argmax(-1) for row in (5, 6))
    assert stats.binomtest(int((abs(first - second) == 1).sum()), 6000, 22 / 132).pvalue > 1e-3


@pytest.mark.parametrize("count", [2**16, 2**16 + 1])
def test_a_random_order_is_one_on_both_sides_of_the_largest_count_that_shares_a_word_with_its_draw(count):
    order = np.asarray(jax.jit(random_order, static_argnums=1)(jax.random.key(0), count))

    assert order.dtype == np.int32
    np.testing.assert_array_equal(np.sort(order), np.arange(count))
    assert stats.spearmanr(order, np.arange(count)).pvalue > 1e-3
    # What a minibatch holds: the lowest 256 numbers are spread evenly over 16 parts of the order.
    parts = np.flatnonzero(order < 256) * 16 // count
    assert stats.chisquare(np.bincount(parts, minlength=16)).pvalue > 1e-3
    # And each part holds numbers from everywhere.
    for part in np.array_split(order, 16):
        assert stats.kstest(part / count, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(
    ("number", "least", "expected"), [(12, 0, 1), (12, 5, 6), (12, 7, 12), (65_536, 24, 32), (7, 2, 7)]
)
def test_the_pieces_of_a_rollout_are_equal_and_not_too_large(number, least, expected):
    assert next_divisor(number, least) == expected


def test_what_is_computed_in_pieces_is_what_is_computed_at_once():
    learner = gw.PPO(num_envs=4, rollout_length=3, batch_size=4, hidden_sizes=(16,)).bind(gw.make("toy/rooms"), 10)
    rows = np.arange(24.0, dtype=np.float32).reshape(12, 2)
    in_pieces = learner.in_chunks(lambda x, key: (2 * x, x.sum(-1)), rows, jax.random.key(0))
    np.testing.assert_array_equal(in_pieces[0], 2 * rows)
    np.testing.assert_array_equal(in_pieces[1], rows.sum(-1))


def test_every_piece_draws_numbers_of_its_own():
    learner = gw.PPO(num_envs=4, rollout_length=3, batch_size=4, hidden_sizes=(16,)).bind(gw.make("toy/rooms"), 10)
    rows = np.zeros((12, 1), np.float32)
    drawn = learner.in_chunks(lambda x, key: jax.random.uniform(key, x.shape), rows, jax.random.key(0))

    assert len(np.unique(drawn)) == 12


@pytest.mark.parametrize(("backend", "sizes"), [("cpu", [4]), ("gpu", [12, 6])])
def test_pieces_are_minibatches_or_on_a_gpu_as_many_inputs_as_it_takes_at_once(monkeypatch, backend, sizes):
    monkeypatch.setattr("jax.default_backend", lambda: backend)
    monkeypatch.setattr("goalward.algos.on_policy._INPUTS_AT_ONCE", 48)
    learner = gw.PPO(num_envs=4, rollout_length=3, batch_size=4, hidden_sizes=(16,)).bind(gw.make("toy/routing"), 10)
    found = []

    def look(rows, key):
        found.append(rows.shape[0])
        return rows

    for num_inputs in (1, 2):  # for each of the 12 rows and 4 agents
        learner.in_chunks(look, np.zeros((12, 1), np.float32), jax.random.key(0), num_inputs)
    assert list(dict.fromkeys(found)) == sizes
