"""What PPO and CPPO share."""

import jax
import numpy as np
from scipy import stats

import goalward as gw


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
