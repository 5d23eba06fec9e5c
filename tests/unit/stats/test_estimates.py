"""Estimates against SciPy, and against values worked out by hand."""

import numpy as np
import pytest
from scipy import stats

from goalward.stats.estimates import (
    iqm,
    mean,
    median,
    normalise,
    optimality_gap,
    probability_of_improvement,
)

UNEVEN = [np.array([0.0, 1.0]), np.array([0.5, 0.5, 0.8]), np.array([0.9])]


def scores(num_tasks=6, num_runs=10, seed=0):
    return list(np.random.default_rng(seed).beta(2, 3, (num_tasks, num_runs)))


def test_mean_and_median_are_over_the_means_of_tasks():
    assert mean(UNEVEN) == pytest.approx((0.5 + 0.6 + 0.9) / 3)
    assert median(UNEVEN) == pytest.approx(0.6)


@pytest.mark.parametrize(("num_tasks", "num_runs"), [(1, 10), (3, 5), (18, 10), (1, 1), (1, 3)])
def test_iqm_is_scipys_trimmed_mean_of_all_runs(num_tasks, num_runs):
    found = scores(num_tasks, num_runs)

    assert iqm(found) == pytest.approx(stats.trim_mean(np.concatenate(found), 0.25), abs=1e-14)


def test_iqm_by_hand():
    assert iqm([np.array([8.0, 1.0, 2.0, 100.0]), np.array([-50.0, 3.0, 4.0, 5.0])]) == pytest.approx(
        (2 + 3 + 4 + 5) / 4
    )


def test_optimality_gap_does_not_let_one_run_make_up_for_another():
    assert optimality_gap([np.array([0.5, 3.0])]) == pytest.approx(0.25)


def test_normalised_scores_have_the_bounds_at_zero_and_one():
    (found,) = normalise([np.array([2.0, 3.0, 6.0])], 2.0, 6.0)

    np.testing.assert_allclose(found, [0.0, 0.25, 1.0])
    with pytest.raises(ValueError, match=r"must exceed the lowest, 1\.0; found 1\.0"):
        normalise([np.zeros(1)], 1.0, 1.0)


def test_probability_of_improvement_counts_pairs_and_half_the_ties():
    # Pairs: 1 beats 0; 1 ties with 1; 0 ties with 0; 0 loses to 1.
    assert probability_of_improvement([np.array([1.0, 0.0])], [np.array([0.0, 1.0])]) == 0.5
    assert probability_of_improvement([np.array([1.0, 1.0])], [np.array([1.0, 0.0, 0.0])]) == pytest.approx(5 / 6)
    assert probability_of_improvement([np.ones(4)], [np.ones(7)]) == 0.5


def test_probability_of_improvement_is_mann_whitneys_statistic_over_the_number_of_pairs():
    ours, theirs = (np.round(x, 1) for x in np.random.default_rng(0).uniform(size=(2, 12)))  # rounded, so with ties
    expected = stats.mannwhitneyu(ours, theirs[:9]).statistic / (12 * 9)

    assert probability_of_improvement([ours], [theirs[:9]]) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("estimate", [mean, median, iqm, optimality_gap])
def test_axes_before_that_of_the_runs_stay(estimate):
    batch = [np.stack([scores(3, 8, seed)[task] for seed in range(4)]) for task in range(3)]

    np.testing.assert_allclose(estimate(batch), [estimate(scores(3, 8, seed)) for seed in range(4)])
