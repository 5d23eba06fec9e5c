"""SAC's losses against loops and finite differences."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from goalward.losses.entropy import soft_policy_loss, temperature_loss

pytestmark = pytest.mark.usefixtures("strict_dtypes")

ROWS = 12
ACTIVE = np.arange(ROWS) % 3 != 0


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    q, log_prob = rng.normal(size=(2, ROWS)).astype(np.float32)
    log_prob[0] = np.inf  # of an agent that does not count
    return q, log_prob


def test_the_policys_loss_equals_a_loop_and_leaves_the_temperature_alone(rows):
    q, log_prob = rows
    log_alpha = jnp.float32(-0.7)
    terms = [math.exp(-0.7) * log_prob[i] - q[i] for i in range(ROWS) if ACTIVE[i]]
    loss, slope = jax.value_and_grad(soft_policy_loss, argnums=2)(q, log_prob, log_alpha, ACTIVE)

    np.testing.assert_allclose(loss, np.mean(terms), rtol=1e-5)
    assert slope == 0.0


@pytest.mark.parametrize("target", [-2.0, 0.0, 2.0])
def test_the_temperatures_step_equals_finite_differences(rows, target):
    _, log_prob = rows

    def slow(log_alpha):
        """Returns alpha times the mean surplus of entropy over the active rows."""
        surplus = np.mean([-float(log_prob[i]) - target for i in range(ROWS) if ACTIVE[i]])
        return math.exp(log_alpha) * surplus

    loss, slope = jax.value_and_grad(temperature_loss)(jnp.float32(-0.7), log_prob, target, ACTIVE)
    step = 1e-4
    np.testing.assert_allclose(loss, slow(-0.7), rtol=1e-5)
    np.testing.assert_allclose(slope, (slow(-0.7 + step) - slow(-0.7 - step)) / (2 * step), rtol=1e-4)


def test_the_temperature_rises_where_entropy_is_short_and_falls_where_there_is_more():
    entropy = 1.0
    log_prob = np.full(ROWS, -entropy, np.float32)
    slopes = [float(jax.grad(temperature_loss)(jnp.float32(0.0), log_prob, target, ACTIVE)) for target in (0.5, 1.5)]

    assert slopes[0] > 0.0 > slopes[1]  # an optimiser goes against the slope
