"""The same numbers as rliable 1.2.0; `write_rliable_values.py` says where its values come from."""

import json
from pathlib import Path

import numpy as np
import pytest

from goalward.stats import ESTIMATES, compare, interval, probability_of_improvement, profile

VALUES = json.loads(Path(__file__).with_name("rliable_values.json").read_text())
OURS, THEIRS = ([np.array(task) for task in VALUES[side]] for side in ("ours", "theirs"))
NUM_REPLICATES = 20_000


def assert_same(found, expected):
    """Asserts equal point values, and bounds that differ by no more than two bootstraps of this size do."""
    assert found.estimate == pytest.approx(expected["estimate"], abs=1e-12)
    low, high = expected["interval"]
    # The 2.5 % quantile of K normal replicates has the standard error 2.67 sigma / sqrt(K); an interval is 3.92 sigma.
    tolerance = 4 * np.sqrt(2) * 2.67 * (high - low) / 3.92 / np.sqrt(NUM_REPLICATES)
    assert (found.low, found.high) == pytest.approx((low, high), abs=tolerance)


@pytest.mark.parametrize("name", ESTIMATES)
def test_aggregates_and_their_intervals(name):
    found = interval(np.random.default_rng(1), OURS, ESTIMATES[name], num_replicates=NUM_REPLICATES)

    assert_same(found, VALUES["aggregates"][name])


def test_probability_of_improvement_with_ties():
    found = compare(np.random.default_rng(1), OURS, THEIRS, probability_of_improvement, num_replicates=NUM_REPLICATES)

    assert_same(found, VALUES["probability of improvement"])


def test_performance_profiles():
    found = profile(np.random.default_rng(0), OURS, VALUES["thresholds"])

    np.testing.assert_allclose(found.estimate, VALUES["profile"], atol=1e-12, rtol=0)
