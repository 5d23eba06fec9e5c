"""Writes rliable_values.json: what rliable 1.2.0 says of some scores, for the tests to compare with.

rliable needs an older pandas than others do, hence an environment of its own:

    python3 -m venv rliable && rliable/bin/pip install rliable==1.2.0 'pandas<3'
    rliable/bin/python tests/unit/stats/write_rliable_values.py

It ignores the random state that it is given and draws from NumPy's global generator, which is therefore seeded here.
"""

import json
from pathlib import Path

import numpy as np
from rliable import library, metrics

NUM_REPLICATES = 20_000
THRESHOLDS = np.linspace(0.0, 1.0, 21)
AGGREGATES = {
    "mean": metrics.aggregate_mean,
    "median": metrics.aggregate_median,
    "iqm": metrics.aggregate_iqm,
    "optimality gap": metrics.aggregate_optimality_gap,
}


def with_interval(scores, aggregate):
    """Returns a point value and its interval."""
    np.random.seed(0)  # noqa: NPY002
    points, intervals = library.get_interval_estimates(
        {"a": scores}, lambda *x: np.array([aggregate(*x)]), reps=NUM_REPLICATES
    )
    return {"estimate": points["a"].item(), "interval": intervals["a"].ravel().tolist()}


rng = np.random.default_rng(0)
ours = np.clip(rng.normal(rng.uniform(0.3, 0.95, 18), 0.08, (10, 18)), 0.0, 1.0)  # runs, tasks
theirs = np.round(np.clip(rng.normal(0.6, 0.2, (10, 18)), 0.0, 1.0), 2)  # with ties
np.random.seed(0)  # noqa: NPY002
profile, _ = library.create_performance_profile({"a": ours}, THRESHOLDS, reps=10)
values = {
    "ours": ours.T.tolist(),
    "theirs": theirs.T.tolist(),
    "aggregates": {name: with_interval(ours, aggregate) for name, aggregate in AGGREGATES.items()},
    "probability of improvement": with_interval((ours, theirs), metrics.probability_of_improvement),
    "thresholds": THRESHOLDS.tolist(),
    "profile": profile["a"].tolist(),
}
Path(__file__).with_name("rliable_values.json").write_text(json.dumps(values, indent=1) + "\n")
