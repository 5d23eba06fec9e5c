"""When to evaluate."""

from __future__ import annotations


def evaluation_iterations(num_iterations: int, num_evaluations: int) -> list[int]:
    """Returns the iteration counts after which to evaluate: evenly spaced, the first before training.

    >>> evaluation_iterations(10, 4)
    [0, 2, 5, 8, 10]
    """
    points = [round(i * num_iterations / num_evaluations) for i in range(num_evaluations + 1)]
    return sorted(set(points))
