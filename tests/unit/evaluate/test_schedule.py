"""When to evaluate."""

from itertools import pairwise

import pytest

from goalward.evaluate.schedule import evaluation_iterations


@pytest.mark.parametrize(
    ("num_iterations", "num_evaluations", "expected"),
    [
        (100, 1, [0, 100]),
        (100, 4, [0, 25, 50, 75, 100]),
        (10, 3, [0, 3, 7, 10]),
        (10, 4, [0, 2, 5, 8, 10]),
        # No more evaluations than iterations.
        (3, 10, [0, 1, 2, 3]),
        (1, 1, [0, 1]),
        (3, 10**12, [0, 1, 2, 3]),
    ],
)
def test_examples(num_iterations, num_evaluations, expected):
    assert evaluation_iterations(num_iterations, num_evaluations) == expected


def test_points_are_even_and_reach_from_before_training_to_its_end():
    for num_iterations in range(1, 40):
        for num_evaluations in range(1, 40):
            points = evaluation_iterations(num_iterations, num_evaluations)
            gaps = [b - a for a, b in pairwise(points)]
            assert points[0] == 0
            assert points[-1] == num_iterations
            assert len(gaps) == min(num_evaluations, num_iterations)
            assert max(gaps) - min(gaps) <= 1
