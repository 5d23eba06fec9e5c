"""Intervals by the stratified bootstrap: runs are drawn anew within each task, as often as there are.

Every function takes a generator and touches no global one, so that the same seed gives the same interval. The
intervals are percentiles of the replicates. With few runs they are too narrow, since a handful of runs does not show
how much runs can differ: `TRUSTED_RUNS` says from when on they can be relied upon.

Axes: R runs of a task, K replicates, P points of a curve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.stats

from goalward.stats.estimates import Estimate, Floats, Scores, mean

CONFIDENCE = 0.95
NUM_REPLICATES = 2000
TRUSTED_RUNS = 5
_POINTS_AT_ONCE = 8  # of a curve: bounds the memory that replicates take

Indices = npt.NDArray[np.int64]
Comparison = Callable[[Scores, Scores], Floats]
Verdict = Literal["better", "level", "worse"]


class Interval(NamedTuple):
    """An estimate and the bounds that the truth is expected to lie within; numbers, or arrays [P] for a curve."""

    estimate: Floats
    low: Floats
    high: Floats


def interval(
    rng: np.random.Generator, scores: Scores, estimate: Estimate, *, num_replicates: int = NUM_REPLICATES
) -> Interval:
    """Returns an estimate with its interval; `scores` has [R] for each task."""
    return _percentiles(estimate(scores), estimate(_resampled(scores, _draw(rng, scores, num_replicates))))


def curve(
    rng: np.random.Generator, scores: Scores, estimate: Estimate, *, num_replicates: int = NUM_REPLICATES
) -> Interval:
    """Returns an estimate with its interval at every point of a curve; `scores` has [P, R] for each task.

    A replicate draws whole runs, so that neighbouring points are estimated from the same ones.
    """
    drawn = _draw(rng, scores, num_replicates)
    pieces = []
    for first in range(0, scores[0].shape[0], _POINTS_AT_ONCE):
        piece = [task[first : first + _POINTS_AT_ONCE] for task in scores]
        pieces.append(_percentiles(estimate(piece), estimate(_resampled(piece, drawn))))
    return Interval(*(np.concatenate(values) for values in zip(*pieces, strict=True)))


def profile(
    rng: np.random.Generator, scores: Scores, levels: npt.ArrayLike, *, num_replicates: int = NUM_REPLICATES
) -> Interval:
    """Returns the share of runs above each of P levels, mean over tasks, with its interval; [R] for each task."""
    thresholds = np.asarray(levels, np.float64)[:, None]
    # A level takes the place of a point of a curve: whether each run is above it, and the mean of that.
    above = [(task > thresholds).astype(np.float64) for task in scores]
    return curve(rng, above, mean, num_replicates=num_replicates)


def compare(
    rng: np.random.Generator,
    ours: Scores,
    theirs: Scores,
    comparison: Comparison,
    *,
    num_replicates: int = NUM_REPLICATES,
) -> Interval:
    """Returns a comparison of two methods with its interval; the runs of both are drawn independently."""
    replicates = [_resampled(scores, _draw(rng, scores, num_replicates)) for scores in (ours, theirs)]
    return _percentiles(comparison(ours, theirs), comparison(*replicates))


def verdict(ours: Floats, theirs: Floats) -> Verdict:
    """Returns whether ours [R] is better than theirs [R] on a task, or worse, or whether that cannot be told.

    By the interval of Welch's t-test for the difference of means: a bootstrap of few runs would say too much.
    """
    sizes = np.array([len(ours), len(theirs)])
    if sizes.min() < 2:
        return "level"
    difference = ours.mean() - theirs.mean()
    rounding = 1e-12 * max(1.0, abs(ours.mean()), abs(theirs.mean()))
    variances = np.array([np.var(ours, ddof=1), np.var(theirs, ddof=1)]) / sizes
    half_width = 0.0
    if np.sqrt(variances.sum()) > rounding:
        freedom = variances.sum() ** 2 / np.sum(variances**2 / (sizes - 1))
        half_width = scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, freedom) * np.sqrt(variances.sum())
    if not abs(difference) > max(half_width, rounding):  # not a number is no difference either
        return "level"
    return "better" if difference > 0 else "worse"


def are_too_few(scores: Scores) -> bool:
    """Returns whether some task has so few runs that intervals come out too narrow."""
    return min(task.shape[-1] for task in scores) < TRUSTED_RUNS


def _draw(rng: np.random.Generator, scores: Scores, num_replicates: int) -> list[Indices]:
    """Returns [K, R] for each task: which runs a replicate consists of."""
    return [rng.integers(0, task.shape[-1], (num_replicates, task.shape[-1])) for task in scores]


def _resampled(scores: Scores, drawn: list[Indices]) -> list[Floats]:
    """Returns [..., K, R] for scores [..., R] of each task."""
    return [task[..., runs] for task, runs in zip(scores, drawn, strict=True)]


def _percentiles(estimate: Floats, replicates: Floats) -> Interval:
    outside = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(replicates, [outside, 1.0 - outside], axis=-1)
    return Interval(np.asarray(estimate), low, high)
