"""What runs say together: aggregates, curves, comparisons and verdicts, each with its interval.

Every interval draws from a generator of its own, seeded by what it is about: it does not depend on what else is in the
report, and the same runs give the same page.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from goalward import stats
from goalward.report.collect import Series
from goalward.stats.estimates import Floats

REFERENCE = "cppo"  # the method that others are compared with


@dataclass(frozen=True)
class Aggregate:
    """A method over the tasks of a suite."""

    suite: str
    method: str
    num_tasks: int
    num_seeds: int  # of the task that has the fewest
    estimates: dict[str, stats.Interval]  # by the names of `stats.ESTIMATES`


@dataclass(frozen=True)
class Curve:
    """Sample efficiency: an interquartile mean over training."""

    method: str
    steps: Floats  # [P]
    interval: stats.Interval  # of [P]


@dataclass(frozen=True)
class Comparison:
    """The reference against another method over the tasks that both were run on."""

    suite: str
    other: str
    improvement: stats.Interval  # the probability that a run of the reference does better
    verdicts: dict[str, stats.Verdict]  # by task


def generator(*about: str) -> np.random.Generator:
    """Returns the generator of one interval."""
    return np.random.default_rng(zlib.crc32("\0".join(about).encode()))


def aggregates(series: Sequence[Series]) -> list[Aggregate]:
    """Returns every method in every suite, in the order of appearance."""
    result = []
    for suite, method in dict.fromkeys((s.suite, s.method) for s in series):
        scores = [s.final for s in series if (s.suite, s.method) == (suite, method)]
        estimates = {
            name: stats.interval(generator(suite, method, name), scores, estimate)
            for name, estimate in stats.ESTIMATES.items()
        }
        result.append(Aggregate(suite, method, len(scores), min(map(len, scores)), estimates))
    return result


def curves(series: Sequence[Series], *about: str) -> list[Curve]:
    """Returns a curve for every method over the tasks in `series`; `about` names what they have in common."""
    result = []
    for method in dict.fromkeys(s.method for s in series):
        members = [s for s in series if s.method == method]
        steps = common_steps(members)
        scores = [at_steps(member, steps) for member in members]
        result.append(Curve(method, steps, stats.curve(generator(*about, method), scores, stats.iqm)))
    return result


def common_steps(series: Sequence[Series]) -> Floats:
    """Returns [P], the coarsest schedule of evaluations among some series, as far as all of them go."""
    last = min(s.steps[-1] for s in series)
    coarsest = min(series, key=lambda s: int(np.sum(s.steps <= last)))
    return coarsest.steps[coarsest.steps <= last]


def at_steps(series: Series, steps: Floats) -> Floats:
    """Returns [P, S], win rates at other steps than those of the evaluations, on straight lines between them."""
    return np.stack([np.interp(steps, series.steps, seed) for seed in series.win_rate.T], axis=-1)


def comparisons(series: Sequence[Series]) -> list[Comparison]:
    """Returns the reference against every other method, suite by suite."""
    result = []
    for suite in dict.fromkeys(s.suite for s in series):
        by_method: dict[str, dict[str, Floats]] = {}
        for s in series:
            if s.suite == suite:
                by_method.setdefault(s.method, {})[s.task] = s.final
        ours = by_method.pop(REFERENCE, {})
        for other, theirs in by_method.items():
            tasks = [task for task in ours if task in theirs]
            if not tasks:
                continue
            pair = [ours[task] for task in tasks], [theirs[task] for task in tasks]
            improvement = stats.compare(generator(suite, other), *pair, stats.probability_of_improvement)
            verdicts = {task: stats.verdict(generator(task, other), ours[task], theirs[task]) for task in tasks}
            result.append(Comparison(suite, other, improvement, verdicts))
    return result
