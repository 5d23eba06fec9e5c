"""The clipped surrogate and its advantages against loops in NumPy."""

import math

import jax
import numpy as np
import pytest

from goalward.losses.policy import clipped_surrogate, normalise_advantage

pytestmark = pytest.mark.usefixtures("strict_dtypes")

CLIP = 0.2
ROWS = 40
ACTIVE = np.arange(ROWS) % 3 != 0
EVERY = np.ones(ROWS, bool)


@pytest.fixture(scope="module")
def rows():
    """Ratios from far below to far above the clip range, advantages of both signs."""
    rng = np.random.default_rng(0)
    old = rng.normal(size=ROWS).astype(np.float32)
    new = (old + rng.normal(scale=0.4, size=ROWS)).astype(np.float32)
    return new, old, rng.normal(size=ROWS).astype(np.float32)


@jax.jit
def surrogate(new, old, adv, active):
    (loss, stats), gradient = jax.value_and_grad(clipped_surrogate, has_aux=True)(new, old, adv, active, CLIP)
    return loss, stats, gradient


@pytest.mark.parametrize("active", [EVERY, ACTIVE], ids=["all_active", "some_inactive"])
def test_surrogate_and_statistics_equal_a_loop(rows, active):
    objective, divergence, clipped = [], [], []
    for new, old, adv, counts in zip(*(x.tolist() for x in (*rows, active)), strict=True):
        if not counts:
            continue
        ratio = math.exp(new - old)
        bounded = min(max(ratio, 1.0 - CLIP), 1.0 + CLIP)
        objective.append(min(ratio * adv, bounded * adv))
        divergence.append(ratio - 1.0 - (new - old))
        clipped.append(ratio < 1.0 - CLIP or ratio > 1.0 + CLIP)
    assert 0.2 < np.mean(clipped) < 0.8
    loss, stats, _ = surrogate(*rows, active)
    np.testing.assert_allclose(loss, -np.mean(objective), rtol=1e-5)
    np.testing.assert_allclose(stats.approx_kl, np.mean(divergence), rtol=1e-4)
    np.testing.assert_allclose(stats.clip_fraction, np.mean(clipped), rtol=1e-6)


def test_gradient_is_zero_exactly_where_the_ratio_has_left_the_range_in_the_direction_of_the_advantage(rows):
    _, _, gradient = surrogate(*rows, ACTIVE)
    num_zero = 0
    for new, old, adv, counts, slope in zip(*(x.tolist() for x in (*rows, ACTIVE, np.asarray(gradient))), strict=True):
        ratio = math.exp(new - old)
        gone_far_enough = ratio > 1.0 + CLIP if adv > 0 else ratio < 1.0 - CLIP
        if not counts or gone_far_enough:
            num_zero += counts
            assert slope == 0.0
        else:
            # The derivative of the ratio with respect to its logarithm is the ratio.
            np.testing.assert_allclose(slope, -adv * ratio / ACTIVE.sum(), rtol=1e-4)
    assert num_zero > 3


def test_an_unchanged_policy_has_the_plain_policy_gradient(rows):
    _, old, adv = rows
    loss, stats, gradient = surrogate(old, old, adv, EVERY)
    np.testing.assert_allclose(loss, -adv.mean(), rtol=1e-5)
    np.testing.assert_allclose(gradient, -adv / ROWS, rtol=1e-5)
    assert stats.approx_kl == 0.0
    assert stats.clip_fraction == 0.0


def test_approximate_divergence_is_that_of_two_coins():
    # Every outcome as often as the old policy takes it: the estimate then is the divergence itself.
    old = np.array([0.25, 0.75, 0.75, 0.75], np.float32)
    new = np.array([0.5, 0.5, 0.5, 0.5], np.float32)
    _, stats, _ = surrogate(np.log(new), np.log(old), np.zeros(4, np.float32), np.ones(4, bool))
    np.testing.assert_allclose(stats.approx_kl, 0.25 * math.log(0.5) + 0.75 * math.log(1.5), rtol=1e-4)
    # Ratios 2 and 2/3, all outside the range.
    assert stats.clip_fraction == 1.0


def test_nobody_active_gives_zero_loss_and_gradient(rows):
    loss, stats, gradient = surrogate(*rows, np.zeros(ROWS, bool))
    assert loss == 0.0
    assert stats.approx_kl == 0.0
    assert stats.clip_fraction == 0.0
    assert (np.asarray(gradient) == 0.0).all()


normalise = jax.jit(normalise_advantage)


@pytest.mark.parametrize("active", [EVERY, ACTIVE], ids=["all_active", "some_inactive"])
def test_advantages_of_active_rows_get_mean_zero_and_deviation_one(rows, active):
    adv = 3.0 + 5.0 * rows[2]
    counted = adv[active].astype(np.float64)
    result = np.asarray(normalise(adv, active, 0.01))
    np.testing.assert_allclose(result, (adv - counted.mean()) / counted.std(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose([result[active].mean(), result[active].std()], [0.0, 1.0], atol=1e-5)


def test_inactive_rows_do_not_shift_the_normalisation(rows):
    adv = rows[2]
    changed = np.where(ACTIVE, adv, 1000.0).astype(np.float32)
    np.testing.assert_allclose(
        np.asarray(normalise(adv, ACTIVE, 0.01))[ACTIVE],
        np.asarray(normalise(changed, ACTIVE, 0.01))[ACTIVE],
        rtol=1e-5,
    )


def test_noise_below_the_floor_is_not_amplified_to_full_size(rows):
    noise = 1e-4 * rows[2]
    result = np.asarray(normalise(noise, EVERY, 0.01))
    # Divided by the floor and not by the deviation of 1e-4.
    np.testing.assert_allclose(result, (noise - noise.mean()) / 0.01, rtol=1e-3, atol=1e-7)
    assert result.std() < 0.02


def test_equal_advantages_become_zero():
    result = normalise(np.full(ROWS, 7.0, np.float32), EVERY, 0.01)
    np.testing.assert_allclose(result, np.zeros(ROWS), atol=1e-4)
