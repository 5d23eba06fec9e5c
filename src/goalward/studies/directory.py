"""The directory of a study: its declaration, the run of each cell, and what each of them printed."""

from __future__ import annotations

import tomllib
import uuid
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from goalward.errors import UserError, brief
from goalward.run.directory import RunDirectory
from goalward.studies.declare import Cell, Study

_DRAFT = ".study.toml."  # what a declaration is called while it is written


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

    def log_together(self, cells: Sequence[Cell]) -> Path:
        """Returns the file that holds what cells printed that trained in one program."""
        return self.path / "logs" / f"{cells[0].folder} and {len(cells) - 1} more.txt"

    def is_finished(self, cell: Cell) -> bool:
        """Returns whether a cell's run has come to its end."""
        return self.run(cell).results.is_file()


def last_words(log: Path) -> str:
    """Returns the last line that was printed to a file."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = ["".join(c for c in line if c.isprintable()) for line in text.split("\n")]
    return next((line.removeprefix("goalward: ") for line in reversed(lines) if line.strip()), "it said nothing")


def _is_draft(path: Path) -> bool:
    return path.name.startswith(_DRAFT)
