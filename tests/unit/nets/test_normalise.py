"""Running statistics of observations against NumPy on all data at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from goalward.nets.normalise import init_stats, normalise, update_stats

pytestmark = pytest.mark.usefixtures("strict_dtypes")

OFFSET = np.array([0.0, 50.0, -3.0], np.float32)
SCALE = np.array([1.0, 2.0, 0.01], np.float32)


def batches(*shapes):
    rng = np.random.default_rng(0)
    # Each batch lies elsewhere, so that the spread between batches matters.
    return [(OFFSET + k + SCALE * rng.normal(size=(*shape, 3))).astype(np.float32) for k, shape in enumerate(shapes)]


def test_moments_are_those_of_all_batches_together():
    parts = batches((4, 5, 2), (7,), (1, 1), (30, 2))
    stats = init_stats(3)
    for part in parts:
        stats = jax.jit(update_stats)(stats, part)
    rows = np.concatenate([part.reshape(-1, 3) for part in parts]).astype(np.float64)
    assert stats.num_rows == len(rows)
    np.testing.assert_allclose(stats.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats.variance, rows.var(0), rtol=1e-3)


def test_normalised_data_has_mean_zero_and_deviation_one():
    (data,) = batches((50, 4))
    stats = jax.jit(update_stats)(init_stats(3), data)
    result = np.asarray(normalise(stats, data)).reshape(-1, 3)
    np.testing.assert_allclose(result.mean(0), np.zeros(3), atol=1e-3)
    np.testing.assert_allclose(result.std(0), np.ones(3), rtol=1e-2)


def test_no_data_normalises_to_the_identity():
    obs = jnp.array([[[0.5, -2.0, 9.0]]])
    np.testing.assert_allclose(normalise(init_stats(3), obs), obs, rtol=1e-6)


def test_outliers_are_cut_off_at_ten_deviations():
    obs = jnp.array([[1000.0, -1000.0, 3.0]])
    np.testing.assert_allclose(normalise(init_stats(3), obs), [[10.0, -10.0, 3.0]], rtol=1e-6)


def test_a_constant_dimension_stays_finite():
    stats = jax.jit(update_stats)(init_stats(3), jnp.full((8, 3), 4.0))
    np.testing.assert_allclose(normalise(stats, jnp.full((2, 3), 4.0)), np.zeros((2, 3)), atol=1e-6)
