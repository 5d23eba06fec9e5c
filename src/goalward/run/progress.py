"""What the terminal shows while a run trains; the training loop knows nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

_MOST_SEEDS_ON_A_LINE = 32


class Reporter(Protocol):
    """Receives the events of a run."""

    def say(self, text: str) -> None:
        """One line for the user."""

    def waiting(self, what: str) -> Any:
        """A context while something is done that may take long and does not say how far it is."""

    def training(self, total: int, done: int) -> Any:
        """A context while iterations run."""

    def iterated(self, done: int, win_rate: float | None, steps_per_second: float) -> None:
        """Some iterations are done."""

    def evaluated(self, step: int, win_rates: list[float], name: str) -> None:
        """An evaluation of a run is done, which has a name where there are several."""

    def finished(self, rows: list[dict[str, Any]]) -> None:
        """The run is done; one row per seed with its last win rates."""


class Silent:
    """Shows nothing."""

    def say(self, text: str) -> None:
        """See `Reporter`."""

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """See `Reporter`."""
        yield

    @contextmanager
    def training(self, total: int, done: int) -> Iterator[None]:
        """See `Reporter`."""
        yield

    def iterated(self, done: int, win_rate: float | None, steps_per_second: float) -> None:
        """See `Reporter`."""

    def evaluated(self, step: int, win_rates: list[float], name: str) -> None:
        """See `Reporter`."""

    def finished(self, rows: list[dict[str, Any]]) -> None:
        """See `Reporter`."""


class Terminal:
    """A progress bar and one line per evaluation; where there is no terminal, the lines alone."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: Any = None

    def say(self, text: str) -> None:
        """See `Reporter`."""
        self._console.print(text, markup=False)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """See `Reporter`."""
        if not self._console.is_terminal:
            self.say(f"{what} ...")
            yield
            return
        with self._console.status(f"{what} ..."):
            yield

    @contextmanager
    def training(self, total: int, done: int) -> Iterator[None]:
        """See `Reporter`."""
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as progress:
            self._progress = progress
            self._task = progress.add_task("training", total=total, completed=done, numbers="")
            yield
        self._progress = None

    def iterated(self, done: int, win_rate: float | None, steps_per_second: float) -> None:
        """See `Reporter`."""
        if self._progress is not None:
            won = "" if win_rate is None else f"win rate {win_rate:.2f}  "
            self._progress.update(
                self._task, completed=done, numbers=f"{won}{steps_per_second:,.0f} steps/s", refresh=True
            )

    def evaluated(self, step: int, win_rates: list[float], name: str) -> None:
        """See `Reporter`."""
        mean = sum(win_rates) / len(win_rates)
        each = " ".join(f"{rate:.3f}" for rate in win_rates)
        if len(win_rates) > _MOST_SEEDS_ON_A_LINE:
            each = f"{min(win_rates):.3f} to {max(win_rates):.3f}"
        self.say(f"step {step:>12,}   win rate {mean:.3f}   per seed {each}{name and f'   {name}'}")

    def finished(self, rows: list[dict[str, Any]]) -> None:
        """See `Reporter`."""
        columns = [name for name in rows[0] if name != "seed"]
        table = Table("seed", *columns, title="Final policies", title_justify="left")
        for row in rows:
            table.add_row(str(row["seed"]), *(f"{row[name]:.3f}" for name in columns))
        table.add_section()
        table.add_row("mean", *(f"{sum(row[name] for row in rows) / len(rows):.3f}" for name in columns))
        self._console.print(table)
