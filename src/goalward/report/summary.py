"""What runs say together: aggregates, curves, comparisons and verdicts, each with its interval.

Every interval draws from a generator of its own, seeded by the scores that it is about: it does not depend on what else
is in the report, and the same runs give the same page.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from goalward import stats
from goalward.report.collect import Series
from goalward.stats.estimates import Floats


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


def generator(scores: Sequence[Floats]) -> np.random.Generator:
    """Returns the generator of an interval of these scores."""
    return np.random.default_rng(zlib.crc32(b"".join(np.ascontiguousarray(task).tobytes() for task in scores)))


def reference_of(series: Sequence[Series]) -> str:
    """Returns the method that others are compared with: CPPO, or without it the first that was run on most tasks."""
    methods = [s.method for s in series]
    return "cppo" if "cppo" in methods else max(methods, key=methods.count)


def aggregates(series: Sequence[Series]) -> list[Aggregate]:
    """Returns every method in every suite, in the order of appearance."""
    result = []
    for suite, method in dict.fromkeys((s.suite, s.method) for s in series):
        scores = [s.final for s in series if (s.suite, s.method) == (suite, method)]
        estimates = {
            name: stats.interval(generator(scores), scores, estimate) for name, estimate in stats.ESTIMATES.items()
        }
        result.append(Aggregate(suite, method, len(scores), min(map(len, scores)), estimates))
    return result


def curves(series: Sequence[Series]) -> list[Curve]:
    """Returns a curve for every method over the tasks in `series`."""
    result = []
    for method in dict.fromkeys(s.method for s in series):
        members = [s for s in series if s.method == method]
        steps = common_steps(members)
        scores = [at_steps(member, steps) for member in members]
        result.append(Curve(method, steps, stats.curve(generator(scores), scores, stats.iqm)))
    return result


def common_steps(series: Sequence[Series]) -> Floats:
    """Returns [P], the coarsest schedule of evaluations among some series, as far as all of them go."""
    last = min(s.steps[-1] for s in series)
    coarsest = min(series, key=lambda s: int(np.sum(s.steps <= last)))
    return coarsest.steps[coarsest.steps <= last]


def at_steps(series: Series, steps: Floats) -> Floats:
    """Returns [P, S], win rates at other steps than those of the evaluations, on straight lines between them."""
    return np.stack([np.interp(steps, series.steps, seed) for seed in series.win_rate.T], axis=-1)


def comparisons(series: Sequence[Series], reference: str) -> list[Comparison]:
    """Returns the reference against every other method, suite by suite, where both had as many steps."""
    result = []
    ours = {s.task: s for s in series if s.method == reference}
    for suite, other in dict.fromkeys((s.suite, s.method) for s in series if s.method != reference):
        theirs = [s for s in series if (s.suite, s.method) == (suite, other) and s.task in ours]
        fair = [s for s in theirs if have_as_many_steps(s, ours[s.task])]
        if not fair:
            continue
        pair = [ours[s.task].final for s in fair], [s.final for s in fair]
        improvement = stats.compare(generator([*pair[0], *pair[1]]), *pair, stats.probability_of_improvement)
        verdicts = {s.task: stats.verdict(ours[s.task].final, s.final) for s in fair}
        result.append(Comparison(suite, other, improvement, verdicts))
    return result


def have_as_many_steps(first: Series, second: Series) -> bool:
    """Returns whether two series were trained for the same number of steps, but for whole iterations."""
    return bool(np.isclose(first.steps[-1], second.steps[-1], rtol=0.05))
