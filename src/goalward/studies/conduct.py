"""Conducts a study: each cell is a run in a process of its own, so that none can take the others with it.

A cell is finished when its run has results. A run that was interrupted goes on from its checkpoint; one that failed is
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
import tomllib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from goalward.envs.tasks import TASKS
from goalward.errors import UserError, brief
from goalward.run.directory import RunDirectory
from goalward.run.interrupts import catch_interrupts
from goalward.studies.declare import Cell, Study
from goalward.studies.progress import StudyTerminal

_SECONDS_BETWEEN_LOOKS = 0.5
_DRAFT = ".study.toml."  # what a declaration is called while it is written


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


class StudyDirectory:
    """The files of a study: its declaration, the run of each cell, and what each of them printed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.declaration = path / "study.toml"

    @classmethod
    def create(cls, path: Path, study: Study) -> StudyDirectory:
        """Returns the directory of a study, new or as an earlier call left it; raises if something else is there."""
        directory = cls(path)
        text = tomli_w.dumps(study.to_tables())
        try:
            # Looked at before the declaration, which others who begin at the same time write before all else.
            is_free = not path.exists() or (path.is_dir() and all(_is_draft(entry) for entry in path.iterdir()))
            if directory.declaration.is_file():
                if directory.declaration.read_bytes() != text.encode():
                    raise UserError(
                        f"'{path}' holds a study that is declared or scaled in another way; choose another --out."
                    )
                return directory
            if not is_free:
                raise UserError(f"Expected --out to name a new directory or one of this study; '{path}' is neither.")
            path.mkdir(parents=True, exist_ok=True)
            draft = path / f"{_DRAFT}{uuid.uuid4().hex}"
            draft.write_text(text, encoding="utf-8")
            try:
                directory.declaration.hardlink_to(draft)  # of two studies that begin at once the first has it
                draft.unlink()
            except FileExistsError:
                draft.unlink()
                return cls.create(path, study)
            except OSError:  # a file system without links
                draft.replace(directory.declaration)
        except OSError as error:
            raise UserError(f"Expected '{path}' to be writable; {error.strerror or error}.") from error
        return directory

    def read(self) -> Study:
        """Returns the study as it was declared when its directory was made."""
        try:
            return Study.from_tables(tomllib.loads(self.declaration.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError, RecursionError, UserError) as error:
            raise UserError(f"Expected '{self.declaration}' to be as the study wrote it; {brief(error)}.") from error

    def run(self, cell: Cell) -> RunDirectory:
        """Returns where a cell's run lies."""
        return RunDirectory(self.path / cell.folder)

    def log(self, cell: Cell) -> Path:
        """Returns the file that holds what a cell's run printed."""
        return self.path / "logs" / f"{cell.folder}.txt"

    def is_finished(self, cell: Cell) -> bool:
        """Returns whether a cell's run has come to its end."""
        return self.run(cell).results.is_file()

    def last_words(self, cell: Cell) -> str:
        """Returns the last line that a cell's run printed."""
        text = self.log(cell).read_text(encoding="utf-8", errors="replace")
        lines = ["".join(c for c in line if c.isprintable()) for line in text.split("\n")]
        return next((line.removeprefix("goalward: ") for line in reversed(lines) if line.strip()), "it said nothing")


def _is_draft(path: Path) -> bool:
    return path.name.startswith(_DRAFT)


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
            for cell in waiting:
                status = _attempt(study, directory, cell, terminal, interrupted)
                if interrupted.is_set():
                    raise StudyInterrupted
                if status is Status.HELD:
                    held.append(cell)
                elif status is Status.FINISHED:
                    outcome.finished.append(cell)
                else:
                    outcome.failed.append(Failure(cell, directory.last_words(cell)))
            if held == waiting:
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
    log = directory.log(cell)
    log.parent.mkdir(parents=True, exist_ok=True)
    terminal.began(str(cell))
    with log.open("ab") as output:
        # A session of its own: Ctrl-C reaches this process alone, which passes it on once, and the run saves itself.
        process = subprocess.Popen(
            command(study, cell, run), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            _follow(process, run, terminal, interrupted)
        except BaseException:
            process.kill()
            raise
        if process.returncode < 0:  # it had no last words of its own
            output.write(f"The run was ended by {signal.Signals(-process.returncode).name}.\n".encode())
    status = Status.FINISHED
    if not directory.is_finished(cell):
        # Of two processes that begin a cell at once one is turned away.
        status = Status.HELD if run.is_held() else Status.FAILED
    stopped = interrupted.is_set() and status is not Status.FINISHED
    terminal.ended(str(cell), "stopped" if stopped else status.value, study.plan(cell).total_steps)
    return status


def _follow(
    process: subprocess.Popen[bytes], run: RunDirectory, terminal: StudyTerminal, interrupted: threading.Event
) -> None:
    """Returns when a process has ended; shows how far its run is, and passes an interruption on."""
    is_told = False
    while True:
        try:
            process.wait(_SECONDS_BETWEEN_LOOKS)
        except subprocess.TimeoutExpired:
            if interrupted.is_set() and not is_told:
                process.send_signal(signal.SIGINT)
                is_told = True
            with contextlib.suppress(UserError):  # the run's own to complain of
                terminal.moved(max((record["step"] for record in run.read_records()), default=0))
        else:
            return


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
