"""The progress of runs that go on together."""

from goalward.run.state import Progress, joined_progress


def test_runs_that_go_on_together_have_taken_as_long_as_the_longest():
    parts = [Progress(2, 5.0, [{"loss": [1.0, 2.0]}]), Progress(2, 9.0, [{"loss": [3.0, 4.0]}])]

    assert joined_progress(parts) == Progress(2, 9.0, [{"loss": [1.0, 2.0, 3.0, 4.0]}])
