"""What the terminal shows while a study is conducted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class StudyTerminal:
    """A bar over the steps of all cells, and a line when one ends; without a terminal also a line when one begins."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: Any = None
        self._steps_of_others = 0  # of the cells before the one that runs
        self._began = 0.0

    def say(self, text: str) -> None:
        """Prints one line."""
        self._console.print(text, markup=False)

    @contextmanager
    def conducting(self, total_steps: int, done_steps: int) -> Iterator[None]:
        """Shows the bar while cells run."""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
        )
        self._steps_of_others = done_steps
        # A run is heard of at its evaluations, which may be minutes apart: the speed is taken over a long time.
        shown = Progress(
            *columns, console=self._console, disable=not self._console.is_terminal, speed_estimate_period=3600
        )
        with shown as self._bar:
            self._task = shown.add_task("study", total=total_steps, completed=done_steps)
            yield
        self._bar = None

    def began(self, name: str) -> None:
        """Names the cell that runs."""
        self._began = time.perf_counter()
        self._update(description=name)
        if not self._console.is_terminal:  # whose bar would name it
            self.say(f"{name}: begun")

    def ended(self, name: str, how: str, steps: int) -> None:
        """Says how a cell ended and how long that took; it was to take so many steps."""
        self._steps_of_others += steps
        self._update(completed=self._steps_of_others)
        self.say(f"{name}: {how} after {time.perf_counter() - self._began:.0f} s")

    def moved(self, steps: int) -> None:
        """Moves the bar: the cell that runs has taken so many steps."""
        self._update(completed=self._steps_of_others + steps)

    def _update(self, **changes: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, **changes)
