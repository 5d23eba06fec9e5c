"""Intervals: their level on problems with a known truth, their seeds, and verdicts."""

import numpy as np
import pytest
from scipy import stats

from goalward.stats.estimates import iqm, mean, probability_of_improvement
from goalward.stats.intervals import are_too_few, compare, curve, interval, profile, verdict


def test_the_interval_of_the_iqm_covers_the_truth_as_often_as_it_says():
    """500 experiments of 10 runs on 6 tasks; the truth is the mean of the middle half of their pooled distribution."""
    rng = np.random.default_rng(0)
    centres, spread = np.linspace(0.2, 0.8, 6), 0.1
    pooled = np.sort(rng.normal(centres[:, None], spread, (6, 400_000)).ravel())
    truth = pooled[len(pooled) // 4 : -len(pooled) // 4].mean()
    covered = 0
    for _ in range(500):
        found = interval(rng, list(rng.normal(centres[:, None], spread, (6, 10))), iqm, num_replicates=500)
        covered += bool(found.low <= truth <= found.high)

    print(f"the 95 % interval of the IQM covers the truth in {covered / 500:.1%} of 500 experiments of 10 runs")
    assert 0.90 <= covered / 500 <= 0.98


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    scores = list(np.random.default_rng(0).uniform(size=(3, 10)))
    first, second, other = (interval(np.random.default_rng(seed), scores, iqm) for seed in (1, 1, 2))

    assert first == second
    assert first.estimate == other.estimate
    assert first.low != other.low


def test_no_global_generator_is_touched():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    interval(np.random.default_rng(0), [np.arange(5.0)], mean)

    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_a_task_is_resampled_within_itself():
    """Two tasks without spread: no replicate can differ, which it could if runs were drawn across tasks."""
    found = interval(np.random.default_rng(0), [np.zeros(4), np.ones(6)], mean)

    assert (found.low, found.estimate, found.high) == (0.5, 0.5, 0.5)


def test_a_curve_has_at_each_point_the_interval_of_that_point():
    tasks = list(np.random.default_rng(0).uniform(size=(2, 21, 10)))
    found = curve(np.random.default_rng(1), tasks, iqm)
    single = interval(np.random.default_rng(1), [task[13] for task in tasks], iqm)

    assert found.estimate.shape == found.low.shape == (21,)
    np.testing.assert_allclose([values[13] for values in found], list(single))


def test_a_comparison_draws_the_runs_of_both_sides():
    rng = np.random.default_rng(0)
    fixed, varied = [np.zeros(10)], [rng.normal(1.0, 0.5, 10)]
    for ours, theirs, sign in ((fixed, varied, -1.0), (varied, fixed, 1.0)):
        found = compare(np.random.default_rng(1), ours, theirs, lambda x, y: mean(x) - mean(y))
        assert found.estimate * sign > 0
        assert found.high - found.low > 0.1


def test_the_probability_of_improvement_of_equals_is_a_half_with_an_interval_around_it():
    rng = np.random.default_rng(3)
    found = compare(rng, list(rng.uniform(size=(4, 10))), list(rng.uniform(size=(4, 10))), probability_of_improvement)

    assert found.low < 0.5 < found.high


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([0.9, 0.91, 0.92, 0.9, 0.93], [0.5, 0.6, 0.4, 0.5, 0.55], "better"),
        ([0.5, 0.6, 0.4, 0.5, 0.55], [0.9, 0.91, 0.92, 0.9, 0.93], "worse"),
        ([0.1, 0.9, 0.5, 0.2, 0.8], [0.2, 0.8, 0.5, 0.1, 0.95], "level"),
        ([1.0] * 10, [1.0] * 10, "level"),
        ([0.1] * 3, [0.1] * 5, "level"),  # whose means differ in the last bit
        ([1.0] * 3, [0.9] * 3, "better"),
        ([1.0] * 3, [0.9, 0.8, 0.7], "level"),
        ([1.0] * 3, [0.9, 0.89, 0.9], "better"),
        ([np.nan] * 3, [0.9] * 3, "level"),
        ([1e17 / 3] * 3, [1e17 / 3] * 7, "level"),
        ([0.9], [0.1], "level"),  # one run each says nothing
        ([0.9], [0.1, 0.1, 0.1], "level"),
    ],
)
def test_a_verdict_needs_an_interval_that_leaves_zero_out(ours, theirs, expected):
    assert verdict(np.array(ours), np.array(theirs)) == expected


@pytest.mark.parametrize("num_runs", [2, 3, 5, 10])
def test_of_equals_a_verdict_is_passed_no_oftener_than_it_says(num_runs):
    rng = np.random.default_rng(0)
    verdicts = [verdict(*rng.normal(0.5, 0.1, (2, num_runs))) for _ in range(1000)]

    assert 1 - verdicts.count("level") / 1000 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000)


def test_fewer_than_five_runs_are_too_few():
    assert are_too_few([np.zeros(10), np.zeros(4)])
    assert not are_too_few([np.zeros(5)])


def test_a_profile_is_the_share_of_runs_above_each_level():
    """Of a task without spread it is certain, of the others not."""
    certain, uneven = [np.array([0.3, 0.3])], [np.array([-1.0, 0.9]), np.array([0.1, 0.6, 0.7])]
    levels = [0.0, 0.3, 0.65]
    for found in profile(np.random.default_rng(0), certain, levels):
        np.testing.assert_array_equal(found, [1.0, 0.0, 0.0])
    found = profile(np.random.default_rng(0), uneven, levels)

    np.testing.assert_allclose(found.estimate, [(1 / 2 + 1) / 2, (1 / 2 + 2 / 3) / 2, (1 / 2 + 1 / 3) / 2])
    assert np.all(found.low < found.estimate)
    assert np.all(found.estimate < found.high)


def test_a_verdict_is_that_of_welchs_test():
    rng = np.random.default_rng(1)
    for _ in range(200):
        ours, theirs = rng.normal(0.1, 0.1, rng.integers(2, 8)), rng.normal(0.0, 0.3, rng.integers(2, 8))
        found = stats.ttest_ind(ours, theirs, equal_var=False)
        expected = "level" if found.pvalue > 0.05 else ("better" if found.statistic > 0 else "worse")
        assert verdict(ours, theirs) == expected
