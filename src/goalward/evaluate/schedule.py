"""When to evaluate."""

from __future__ import annotations


def evaluation_iterations(num_iterations: int, num_evaluations: int) -> list[int]:
    """Returns the iteration counts after which to evaluate: evenly spaced, the first before training.

    >>> evaluation_iterations(10, 4)
    [0, 2, 5, 8, 10]
    """
    count = min(num_evaluations, num_iterations)  # more would only give the same points again
    points = [round(i * num_iterations / count) for i in range(count + 1)]
    return sorted(set(points))
