"""Aggregates of scores over tasks and runs, as recommended by Agarwal et al. (2021).

Scores are a list with one array [..., R] for each task: R runs on the last axis, whose number may differ between
tasks, and any axes before it, such as replicates of a bootstrap or points of a curve. Those stay: an estimate is [...].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Scores = Sequence[Floats]
Estimate = Callable[[Scores], Floats]


def normalise(scores: Scores, low: float, high: float) -> list[Floats]:
    """Returns scores on a scale on which `low` is 0 and `high` is 1."""
    if not high > low:
        raise ValueError(f"The highest score must exceed the lowest, {low}; found {high}.")
    return [(np.asarray(task, np.float64) - low) / (high - low) for task in scores]


def mean(scores: Scores) -> Floats:
    """Returns the mean over tasks of the mean over runs."""
    return _task_means(scores).mean(0)


def median(scores: Scores) -> Floats:
    """Returns the median over tasks of the mean over runs."""
    return np.asarray(np.median(_task_means(scores), axis=0))


def iqm(scores: Scores) -> Floats:
    """Returns the interquartile mean: of all runs of all tasks, the mean of the middle half."""
    everything = np.sort(np.concatenate(list(scores), axis=-1), axis=-1)
    count = everything.shape[-1]
    cut = count // 4
    return np.asarray(everything[..., cut : count - cut].mean(-1))


def optimality_gap(scores: Scores, goal: float = 1.0) -> Floats:
    """Returns by how much runs fall short of `goal`; what exceeds it does not make up for others."""
    return goal - mean([np.minimum(task, goal) for task in scores])


ESTIMATES: dict[str, Estimate] = {"mean": mean, "median": median, "iqm": iqm, "optimality gap": optimality_gap}


def probability_of_improvement(ours: Scores, theirs: Scores) -> Floats:
    """Returns how often a run of ours beats one of theirs on the same task, ties counted half, mean over tasks."""
    return np.mean([_chance_to_win(x, y) for x, y in zip(ours, theirs, strict=True)], axis=0)


def _task_means(scores: Scores) -> Floats:
    return np.stack([np.mean(task, axis=-1) for task in scores])


def _chance_to_win(ours: Floats, theirs: Floats) -> Any:
    first, second = ours[..., :, None], theirs[..., None, :]
    return np.mean((first > second) + 0.5 * (first == second), axis=(-2, -1))
