"""A run's directory on disk: the settings, the versions, the records, and a lock against a second writer."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import jax

from goalward import __version__
from goalward.errors import UserError
from goalward.run.config import Plan

# What every line of metrics.jsonl holds, besides the metrics of training and the task's own.
_RECORD_FIELDS = ("evaluation", "iteration", "step", "elapsed", "seed", "win_rate", "return", "length")
_LOCK_ATTEMPTS = 10
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
_SUITES = ("navix", "brax", "mujoco", "mujoco-mjx", "jaxmarl", "jumanji")


class RunDirectory:
    """The files of one run, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.versions = path / "versions.json"
        self.metrics = path / "metrics.jsonl"
        self.results = path / "results.json"
        self.checkpoints = path / "checkpoints"
        self.media = path / "media"
        self._lock = path / ".lock"
        self._made: list[Path] | None = None  # the folders that were made for a new run, innermost first

    @classmethod
    def create(cls, out: str | Path | None, plan: Plan, task: str) -> RunDirectory:
        """Returns a new directory with the settings in it; raises if `out` is in use or cannot be written.

        Without `out` it lies under runs/, by the name of the task that is played and of the algorithm.
        """
        if out is not None and not str(out):
            raise UserError("Expected --out to name a directory; found an empty name.")
        if not _is_text(str(out)):
            raise UserError(f"Expected --out to be a name in UTF-8; found {str(out)!r}.")
        text = _settings_text(plan)
        names = [Path(out)] if out is not None else _default_paths(task, plan.run.algo)
        run = next((run for run in map(cls, names) if run._claim(text)), None)
        if run is None:
            used = cls(Path(str(out)))
            resume = f", or go on with that run: goalward train --resume {out}" if used.config.is_file() else "."
            raise UserError(
                f"Expected --out to name a new or empty directory; '{out}' is in use. Choose another name{resume}"
            )
        write_json(run.versions, versions())
        return run

    def _claim(self, settings: bytes) -> bool:
        """Writes the settings unless the directory is in use; returns whether it did."""
        try:
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                return False
            made = [path for path in (self.path, *self.path.parents) if not path.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            with self.config.open("xb") as handle:  # of two processes one succeeds
                handle.write(settings)
        except FileExistsError:
            return False
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or error
            raise UserError(f"Expected '{self.path}' to be writable; {what}. Choose another --out.") from error
        self._made = made
        return True

    def discard_unless_begun(self) -> None:
        """Takes back what a new run wrote before it failed without a checkpoint: there is nothing to go on from.

        Only files that a run writes are removed, and only folders that were made for it and are empty.
        """
        if self._made is None or self.has_begun:
            return
        for path in (self.config, self.versions, self.metrics, self._lock):
            path.unlink(missing_ok=True)
        for path in self.checkpoints.glob("*.orbax-checkpoint-tmp*"):  # one that was being written
            shutil.rmtree(path, ignore_errors=True)
        for folder in (self.checkpoints, *self._made):
            with contextlib.suppress(OSError):  # somebody else's files are in it
                folder.rmdir()

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Returns an existing run; raises if there is none."""
        if not isinstance(path, str | os.PathLike):
            raise UserError(f"Expected the path of a run directory; found {path!r}.")
        run = cls(Path(path))
        with _explained(run.config, "readable"):
            is_run = run.config.is_file()
        if not is_run:
            raise UserError(
                f"Expected '{path}' to be a run directory, which holds a config.toml; found "
                f"{'a directory without one' if run.path.is_dir() else 'no such directory'}."
            )
        return run

    def plan(self) -> Plan:
        """Returns the settings that the run was started with."""
        with _explained(self.config, "readable"):
            text = self.config.read_bytes()
        try:
            return Plan.from_toml(text.decode())
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"Expected '{self.config}' to hold the settings of a run; it does not: {error}.") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the directory for this process; raises if another one has it. The system frees it on exit."""
        with _explained(self._lock, "writable"):
            handle = self._lock.open("w")
        with handle:
            if not any(_try_lock(handle) for _ in range(_LOCK_ATTEMPTS)):
                self._made = None  # whoever made it, it is not this process's to take back
                raise UserError(f"Another process is writing '{self.path}'; wait for it or choose another --out.")
            yield

    def is_held(self) -> bool:
        """Returns whether a process is writing the directory."""
        if not self._lock.is_file():
            return False
        with _explained(self._lock, "readable"), self._lock.open("r") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # others may look at the same time
            except OSError:
                return True
        return False

    @property
    def has_begun(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self.newest_checkpoint() is not None

    def newest_checkpoint(self) -> int | None:
        """Returns the iteration of the newest checkpoint, None if there is none; nothing is read but names."""
        names = [path.name for path in self.checkpoints.iterdir()] if self.checkpoints.is_dir() else []
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def append_records(self, records: list[dict[str, Any]]) -> None:
        """Adds lines to metrics.jsonl."""
        with _explained(self.metrics, "writable"), self.metrics.open("a", encoding="utf-8") as handle:
            handle.writelines(json.dumps(record) + "\n" for record in records)

    def read_records(self) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl; a last line that a crash left unfinished is passed over."""
        with _explained(self.metrics, "readable"):
            content = self.metrics.read_bytes() if self.metrics.exists() else b""
        *lines, unfinished = content.split(b"\n")
        del unfinished  # empty where the file ends as it should
        return [self._record(number, line) for number, line in enumerate(lines, start=1)]

    def _record(self, number: int, line: bytes) -> dict[str, Any]:
        """Returns one line of metrics.jsonl; raises if it is not what `append_records` writes."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not all(isinstance(record.get(n), int | float) for n in _RECORD_FIELDS):
            raise UserError(
                f"Expected line {number} of '{self.metrics}' to be the record of an evaluation; found {line[:60]!r}. "
                "Bring the file back as the run wrote it."
            )
        return record

    def keep_records(self, up_to_iteration: int) -> None:
        """Drops what was recorded after a checkpoint that the run goes back to."""
        kept = [r for r in self.read_records() if r["iteration"] <= up_to_iteration]
        write_text(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))


def _try_lock(handle: IO[str]) -> bool:
    """Returns whether this process holds the file now; waits a little if not, since a mere look also holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        time.sleep(0.05)
        return False
    return True


def versions() -> dict[str, Any]:
    """Returns what produced the numbers: packages, commit, Python, machine and accelerator."""
    return {
        "goalward": __version__,
        "packages": {name: _package_version(name) for name in _PACKAGES},
        "suites": {name: version for name in _SUITES if (version := _package_version(name))},
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "devices": [device.device_kind for device in jax.devices()],
        "cpu_count": os.cpu_count(),
    }


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    draft = path.with_name(path.name + ".tmp")
    with _explained(path, "writable"):
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)


@contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    """Turns what the system says about a file into a sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(f"Expected '{path}' to be {what}; {error.strerror or error}.") from error


def _settings_text(plan: Plan) -> bytes:
    """Returns the settings as they stand in config.toml; raises for a value that no file can hold."""
    try:
        return plan.to_toml().encode()
    except (TypeError, ValueError) as error:
        raise UserError(
            "Expected settings that can be saved: numbers, words, true or false, or lists and tables of such; "
            f"found one that cannot: {error}."
        ) from error


def _is_text(name: str) -> bool:
    """Returns whether a name can be written down; the system also allows names that are no text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _default_paths(task: str, algo: str) -> Iterator[Path]:
    """Yields runs/TASK/ALGO/DATE, then the same with _2, _3 and so on."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folders = [re.sub(r"[^\w.,=+-]+", "-", part, flags=re.ASCII).strip(".")[:100] or "task" for part in task.split("/")]
    base = Path("runs", *folders, algo, stamp)
    yield base
    for number in itertools.count(2):
        yield base.with_name(f"{stamp}_{number}")


def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # importable from a path, yet never installed
        return None


def _commit() -> str | None:
    """Returns the commit of the checkout that the package runs from, None if it is not run from one."""

    def git(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    # A package installed below some other project's checkout has no commit of its own.
    is_tracked = git("ls-files", "--error-unmatch", Path(__file__).name) is not None
    return git("rev-parse", "--verify", "HEAD") if is_tracked else None
