"""A run's directory on disk: the settings, the versions, the records, and a lock against a second writer."""

from __future__ import annotations

import fcntl
import importlib.metadata
import itertools
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from goalward import __version__
from goalward.errors import UserError
from goalward.run.config import Plan

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


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

    @classmethod
    def create(cls, out: str | Path | None, plan: Plan) -> RunDirectory:
        """Returns a new directory with the settings in it; raises if `out` is in use or cannot be written."""
        names = [Path(out)] if out is not None else _default_paths(plan)
        run = next((run for run in map(cls, names) if run._claim(plan)), None)
        if run is None:
            used = cls(Path(str(out)))
            resume = f", or go on with that run: goalward train --resume {out}" if used.config.is_file() else "."
            raise UserError(
                f"Expected --out to name a new or empty directory; '{out}' is in use. Choose another name{resume}"
            )
        write_json(run.versions, versions())
        return run

    def _claim(self, plan: Plan) -> bool:
        """Writes the settings unless the directory is in use; returns whether it did."""
        try:
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                return False
            self.path.mkdir(parents=True, exist_ok=True)
            with self.config.open("x", encoding="utf-8") as handle:  # of two processes one succeeds
                handle.write(plan.to_toml())
        except FileExistsError:
            return False
        except OSError as error:
            raise UserError(
                f"Expected '{self.path}' to be writable; {error.strerror or error}. Choose another --out."
            ) from error
        return True

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Returns an existing run; raises if there is none."""
        run = cls(Path(path))
        if not run.config.is_file():
            raise UserError(
                f"Expected '{path}' to be a run directory, which holds a config.toml; found "
                f"{'a directory without one' if run.path.is_dir() else 'no such directory'}."
            )
        return run

    def plan(self) -> Plan:
        """Returns the settings that the run was started with."""
        try:
            return Plan.from_toml(self.config.read_text(encoding="utf-8"))
        except (TypeError, ValueError) as error:
            raise UserError(f"Expected '{self.config}' to hold the settings of a run; it does not: {error}.") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the directory for this process; raises if another one has it. The system frees it on exit."""
        with self._lock.open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(
                    f"Another process is writing '{self.path}'; wait for it or choose another --out."
                ) from error
            yield

    def append_records(self, records: list[dict[str, Any]]) -> None:
        """Adds lines to metrics.jsonl."""
        with self.metrics.open("a", encoding="utf-8") as handle:
            handle.writelines(json.dumps(record) + "\n" for record in records)

    def read_records(self) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl; a last line that a crash left unfinished is passed over."""
        if not self.metrics.is_file():
            return []
        *lines, unfinished = self.metrics.read_text(encoding="utf-8").split("\n")
        del unfinished  # empty where the file ends as it should
        return [json.loads(line) for line in lines]

    def keep_records(self, up_to_iteration: int) -> None:
        """Drops what was recorded after a checkpoint that the run goes back to."""
        kept = [r for r in self.read_records() if r["iteration"] <= up_to_iteration]
        write_text(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))


def versions() -> dict[str, Any]:
    """Returns what produced the numbers: packages, commit, Python, machine and accelerator."""
    import jax  # reading a run directory needs no jax

    return {
        "goalward": __version__,
        "packages": {name: _package_version(name) for name in _PACKAGES},
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
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _default_paths(plan: Plan) -> Iterator[Path]:
    """Yields runs/TASK/ALGO/DATE, then the same with _2, _3 and so on."""
    task = plan.run.task.replace(":", "-").replace("/", os.sep)
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    base = Path("runs") / task / plan.run.algo / stamp
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
