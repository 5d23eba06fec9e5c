"""Conducts a study: cells run in processes of their own, so that none can take the others with it.

Cells that differ only in settings that can be traced train in one program; if that fails, they are tried one by one. A
cell is finished when its run has results. A run that was interrupted goes on from its checkpoint; one that failed is
listed, and tried again when the study is. A run that another process is writing is left to it and waited for at the
end: several processes can work on one study, also on several machines that share its directory.
"""

from __future__ import annotations

import contextlib
import enum
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from goalward.envs.tasks import TASKS
from goalward.errors import UserError
from goalward.run.directory import RunDirectory
from goalward.run.interrupts import catch_interrupts
from goalward.studies.batches import batches
from goalward.studies.declare import Cell, Study
from goalward.studies.directory import StudyDirectory, last_words
from goalward.studies.progress import StudyTerminal

_SECONDS_BETWEEN_LOOKS = 0.5


class StudyInterrupted(KeyboardInterrupt):
    """The user stopped the study; runs are saved."""


class Status(enum.Enum):
    """How a cell stands."""

    FINISHED = "finished"
    FAILED = "failed"
    HELD = "left to another process"


@dataclass(frozen=True)
class Failure:
    """A cell that did not come to its end, and what its run said last."""

    cell: Cell
    reason: str


@dataclass
class Outcome:
    """How the cells of a study went."""

    finished: list[Cell] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)


def require_packages(study: Study) -> None:
    """Raises if a suite that a cell plays is not installed."""
    tasks = [TASKS[cell.task] for cell in study.cells if cell.task in TASKS]
    missing = sorted({str(task.extra) for task in tasks if not task.is_installed})
    if missing:
        raise UserError(
            f"The study {study.name} plays tasks of {', '.join(missing)}, which are not installed. Install them with "
            f"pip install 'goalward[{','.join(missing)}]', or choose others with --tasks."
        )


def conduct(study: Study, directory: StudyDirectory, cells: Sequence[Cell], terminal: StudyTerminal) -> Outcome:
    """Returns how some cells of a study went, or all of them; finished ones are not run again."""
    outcome = Outcome()
    steps = [study.plan(cell).total_steps for cell in cells]
    done = sum(count for cell, count in zip(cells, steps, strict=True) if directory.is_finished(cell))
    with catch_interrupts() as interrupted, terminal.conducting(sum(steps), done):
        waiting, is_told = list(cells), False
        while waiting:
            held = []
            for batch in batches(study, directory, waiting):
                if len(batch) > 1:
                    _attempt_together(study, directory, batch, terminal, interrupted)
                for cell in batch:
                    status = _attempt(study, directory, cell, terminal, interrupted)
                    if interrupted.is_set():
                        raise StudyInterrupted
                    if status is Status.HELD:
                        held.append(cell)
                    elif status is Status.FINISHED:
                        outcome.finished.append(cell)
                    else:
                        outcome.failed.append(Failure(cell, last_words(directory.log(cell))))
            if len(held) == len(waiting):
                if not is_told:
                    terminal.say(f"Waiting for cells that other processes run: {', '.join(map(str, held))}")
                is_told = True
                interrupted.wait(_SECONDS_BETWEEN_LOOKS)
            waiting = held
    return outcome


def _attempt(
    study: Study, directory: StudyDirectory, cell: Cell, terminal: StudyTerminal, interrupted: threading.Event
) -> Status:
    """Returns a cell's status, after running it if that is left to do."""
    run = directory.run(cell)
    if directory.is_finished(cell):
        return Status.FINISHED
    if run.is_held():
        return Status.HELD
    terminal.began(str(cell))
    _run(command(study, cell, run), directory.log(cell), [run], terminal, interrupted)
    status = Status.FINISHED
    if not directory.is_finished(cell):
        # Of two processes that begin a cell at once one is turned away.
        status = Status.HELD if run.is_held() else Status.FAILED
    stopped = interrupted.is_set() and status is not Status.FINISHED
    terminal.ended(str(cell), "stopped" if stopped else status.value, study.plan(cell).total_steps)
    return status


def _attempt_together(
    study: Study,
    directory: StudyDirectory,
    cells: Sequence[Cell],
    terminal: StudyTerminal,
    interrupted: threading.Event,
) -> None:
    """Trains cells in one program; what it does not bring to an end is left to be tried cell by cell."""
    log = directory.log_together(cells)
    together = f"{len(cells)} cells train in one program: {', '.join(map(str, cells))}"
    terminal.say(together)
    for cell in cells:
        _add_line(directory.log(cell), f"{together}. What it prints is in {log}")
    terminal.began(f"{len(cells)} cells of {cells[0].task} with {cells[0].algo}")
    _run(command_together(directory, cells), log, [directory.run(cell) for cell in cells], terminal, interrupted)
    left = [cell for cell in cells if not directory.is_finished(cell)]
    for cell in left:
        _add_line(directory.log(cell), last_words(log))
    for cell in cells:
        if cell not in left or interrupted.is_set():
            how = "stopped" if cell in left else Status.FINISHED.value
            terminal.ended(str(cell), how, study.plan(cell).total_steps)
    if interrupted.is_set():
        raise StudyInterrupted
    if left:
        terminal.say(f"{len(left)} of them are tried one by one. The program said: {last_words(log)}")


def _run(
    arguments: Sequence[str],
    log: Path,
    runs: Sequence[RunDirectory],
    terminal: StudyTerminal,
    interrupted: threading.Event,
) -> None:
    """Returns when the process that trains some runs has ended; what it prints is added to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        # A session of its own: Ctrl-C reaches this process alone, which passes it on once, and the run saves itself.
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            _follow(process, runs, terminal, interrupted)
        except BaseException:
            process.kill()
            raise
        if process.returncode < 0:  # it had no last words of its own
            output.write(f"The run was ended by {signal.Signals(-process.returncode).name}.\n".encode())


def _add_line(log: Path, text: str) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as output:
        output.write(f"{text}\n")


def _follow(
    process: subprocess.Popen[bytes],
    runs: Sequence[RunDirectory],
    terminal: StudyTerminal,
    interrupted: threading.Event,
) -> None:
    """Returns when a process has ended; shows how far its runs are, and passes an interruption on."""
    is_told = False
    while True:
        try:
            process.wait(_SECONDS_BETWEEN_LOOKS)
        except subprocess.TimeoutExpired:
            if interrupted.is_set() and not is_told:
                process.send_signal(signal.SIGINT)
                is_told = True
            with contextlib.suppress(UserError):  # the run's own to complain of
                terminal.moved(sum(max((record["step"] for record in run.read_records()), default=0) for run in runs))
        else:
            return


def command_together(directory: StudyDirectory, cells: Sequence[Cell]) -> list[str]:
    """Returns the command line that trains cells in one program, or goes on with their runs."""
    folders = [str(cell.folder) for cell in cells]
    return [sys.executable, "-m", "goalward.cli", "study-cells", str(directory.path), *folders]


def command(study: Study, cell: Cell, run: RunDirectory) -> list[str]:
    """Returns the command line that trains a cell, or goes on with its run."""
    goalward = [sys.executable, "-m", "goalward.cli", "train"]
    if run.config.is_file():
        return [*goalward, *([cell.task] if ":" in cell.task else []), f"--resume={run.path}"]
    plan = study.plan(cell)
    options = {
        "algo": cell.algo,
        "preset": study.preset,
        "seeds": plan.run.seeds,
        "steps": plan.run.steps,
        "goal": cell.goal,
        "reward": cell.reward,
        "out": run.path,
    }
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    settings = [f"{key}={_as_toml(value)}" for key, value in {**study.settings, **cell.settings}.items()]
    return [*goalward, cell.task, *given, *(["--set", *settings] if settings else [])]


def _as_toml(value: Any) -> str:
    """Returns a value as `--set` reads it.

    >>> _as_toml("symmetric"), _as_toml(0.5), _as_toml(True)
    ('"symmetric"', '0.5', 'true')
    """
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()
