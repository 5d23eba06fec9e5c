"""Which cells of a study train in one program, and the process that trains them.

They are alike but for settings that can be traced, such as learning rates, and have come equally far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from goalward.errors import UserError
from goalward.run.train import train_together
from goalward.studies.declare import Cell, Study
from goalward.studies.directory import StudyDirectory


def batches(study: Study, directory: StudyDirectory, cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Yields all cells, those that can train in one program together.

    How a cell stands is looked up when its turn comes: other processes may have begun or finished it by then.
    """
    alike = [(cell, study.plan(cell).without_traced()) for cell in cells]
    while alike:
        (first, wanted), *others = alike
        batch = [first]
        if study.together and _is_free(directory, first):
            far = directory.run(first).newest_checkpoint()
            batch += [
                cell
                for cell, plan in others
                if plan == wanted and _is_free(directory, cell) and directory.run(cell).newest_checkpoint() == far
            ]
        yield batch
        alike = [(cell, plan) for cell, plan in others if cell not in batch]


def _is_free(directory: StudyDirectory, cell: Cell) -> bool:
    return not directory.is_finished(cell) and not directory.run(cell).is_held()


def train_cells(directory: StudyDirectory, folders: Sequence[str]) -> None:
    """Trains the cells of a study that lie in these folders, in one program."""
    study = directory.read()
    cells = {str(cell.folder): cell for cell in study.cells}
    unknown = [folder for folder in folders if folder not in cells]
    if unknown:
        raise UserError(f"Expected folders of cells of '{directory.path}'; found '{unknown[0]}'.")
    train_together(
        [(study.plan(cells[folder]), directory.run(cells[folder]).path) for folder in folders], show_progress=True
    )
