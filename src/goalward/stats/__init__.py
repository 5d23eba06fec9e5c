"""Statistics of runs: estimates, intervals, comparisons. NumPy and SciPy, nothing else of this package."""

from goalward.stats.estimates import (
    ESTIMATES,
    iqm,
    mean,
    median,
    normalise,
    optimality_gap,
    probability_of_improvement,
)
from goalward.stats.intervals import Interval, Verdict, are_too_few, compare, curve, interval, profile, verdict

__all__ = [
    "ESTIMATES",
    "Interval",
    "Verdict",
    "are_too_few",
    "compare",
    "curve",
    "interval",
    "iqm",
    "mean",
    "median",
    "normalise",
    "optimality_gap",
    "probability_of_improvement",
    "profile",
    "verdict",
]
