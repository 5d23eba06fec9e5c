"""Statistics of runs: estimates, intervals, comparisons. Plain NumPy, nothing else of this package."""

from goalward.stats.estimates import (
    ESTIMATES,
    difference_of_means,
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
    "difference_of_means",
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
