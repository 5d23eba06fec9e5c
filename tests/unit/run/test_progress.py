"""What the terminal shows."""

import pytest

from goalward.run.progress import Terminal


@pytest.mark.parametrize(
    ("win_rates", "name", "line"),
    [
        ([0.25, 0.75], "", "step        1,000   win rate 0.500   per seed 0.250 0.750"),
        ([0.25, 0.75], "bold", "step        1,000   win rate 0.500   per seed 0.250 0.750   bold"),
        ([0.0, *[0.5] * 98, 1.0], "", "step        1,000   win rate 0.500   per seed 0.000 to 1.000"),
    ],
)
def test_an_evaluation_is_one_line_however_many_seeds(capsys, win_rates, name, line):
    Terminal().evaluated(1000, win_rates, name)

    assert capsys.readouterr().out == f"{line}\n"
