"""Ant maze: the ant walks through a maze to the middle of a random cell. Continuous, single agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from goalward.envs.composed import GoalFactory, RewardFactory, require_number
from goalward.envs.draw import WALL
from goalward.envs.jaxgcrl.ant import AntPhysics, AntTask, Wall
from goalward.envs.jaxgcrl.base import TopView
from goalward.envs.jaxgcrl.physics import require_backend
from goalward.envs.maps import all_shortest_paths
from goalward.errors import UserError, unknown_name
from goalward.goals.jaxgcrl import Position
from goalward.rewards.jaxgcrl import Dense

# JaxGCRL's mazes. A row of text is a row of cells along y, rows follow each other along x; # wall, S start, G goal.
# fmt: off
LAYOUTS = {
    "u": (
        "#####",
        "#SGG#",
        "###G#",
        "#GGG#",
        "#####",
    ),
    "big": (
        "########",
        "#SG##GG#",
        "#GG#GGG#",
        "##GGG###",
        "#GG#GGG#",
        "#G#GG#G#",
        "#GGG#GG#",
        "########",
    ),
    "hardest": (
        "############",
        "#SGGG#GGGGG#",
        "#G##G#G#G#G#",
        "#GGGGGG#GGG#",
        "#G####G###G#",
        "#GG#G#GGGGG#",
        "##G#G#G#G###",
        "#GG#GGG#GGG#",
        "############",
    ),
}
# fmt: on
_TASK = "jaxgcrl/ant-u-maze"


class MazePhysics(AntPhysics):
    """An ant between walls; it starts in the middle of a cell."""

    def __init__(self, backend: str, layout: Sequence[str], cell_size: float) -> None:
        symbols = np.array([list(row) for row in layout])
        # Brax pays for every pair of a limb and a box, so walls of many cells are one box where they can be.
        walls = [box_around(*cells, cell_size) for cells in merged_cells(symbols == "#")]
        self.starts = jnp.asarray(cell_size * np.argwhere(symbols == "S"), jnp.float32)
        self.goals = jnp.asarray(cell_size * np.argwhere(symbols == "G"), jnp.float32)
        super().__init__(backend, walls, wall_height=cell_size / 2)

    def place(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the middles of a start and a goal, each cell equally likely."""
        key_start, key_goal = jax.random.split(key)
        return jax.random.choice(key_start, self.starts), jax.random.choice(key_goal, self.goals)


class AntMaze(AntTask):
    """An ant in a maze of square cells; the cell in row i and column j has its middle at (i, j) times `cell_size`.

    `layout` is a name in `LAYOUTS`, or rows of the symbols # (wall), S (start), G (goal) and . (free).
    """

    def __init__(
        self,
        *,
        layout: str | Sequence[str] = "u",
        cell_size: float = 4.0,
        backend: str = "spring",
        max_steps: int = 1000,
        goal: GoalFactory = Position,
        reward: RewardFactory = Dense,
    ) -> None:
        require_backend(_TASK, backend)
        require_number(_TASK, 2.0, 20.0, cell_size=cell_size)
        self.layout = checked_layout(layout)
        name = layout if isinstance(layout, str) else "own"
        self.cell_size = cell_size
        variant = "" if cell_size == 4.0 else f"-{cell_size:g}m"
        variant += "" if backend == "spring" else f"-{backend}"
        super().__init__(
            MazePhysics(backend, self.layout, cell_size),
            name=f"jaxgcrl/ant-{name}-maze{variant}",
            max_steps=max_steps,
            goal=goal,
            reward=reward,
        )

    def backdrop(self) -> TopView:
        """Returns a picture of the walls; most of the outermost ones is cut off."""
        num_rows, num_cols = len(self.layout), len(self.layout[0])
        size = max(num_rows, num_cols)
        view = TopView(0.3 * self.cell_size, (size - 1.3) * self.cell_size)
        is_wall = np.ones((size, size), bool)
        is_wall[:num_rows, :num_cols] = [[symbol == "#" for symbol in row] for row in self.layout]
        for cell in np.argwhere(is_wall):
            view.canvas.cell(*view.at(self.cell_size * (cell - 0.5)), WALL, self.cell_size)
        return view


def checked_layout(layout: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the rows of a layout; raises if an ant could not play in it."""
    if isinstance(layout, str):
        if layout not in LAYOUTS:
            raise unknown_name(f"layout of {_TASK}", layout, LAYOUTS)
        return LAYOUTS[layout]
    if not isinstance(layout, Sequence):
        raise UserError(f"layout of {_TASK} must be a name or rows of text; found {layout!r}.")
    rows = tuple(str(row) for row in layout)
    if not rows or not rows[0] or len({len(row) for row in rows}) > 1:
        raise UserError(f"layout of {_TASK} must have rows of one length; found lengths {[len(row) for row in rows]}.")
    symbols = np.array([list(row) for row in rows])
    strange = sorted(set("".join(rows)) - set("#SG."))
    if strange:
        raise UserError(f"layout of {_TASK} must be drawn with #, S, G and .; found {', '.join(map(repr, strange))}.")
    for symbol, meaning in (("S", "start"), ("G", "goal")):
        if not (symbols == symbol).any():
            raise UserError(f"layout of {_TASK} must have a {meaning}; found no {symbol}.")
    edge = np.concatenate([symbols[[0, -1]].ravel(), symbols[:, [0, -1]].ravel()])
    if (edge != "#").any():
        raise UserError(f"layout of {_TASK} must have walls all around; found an opening at the edge.")
    ways = all_shortest_paths(symbols == "#")[symbols == "S"][:, symbols == "G"]
    if not np.isfinite(ways).all():
        raise UserError(f"layout of {_TASK} must have a way from every start to every goal; found a goal walled off.")
    return rows


def merged_cells(walls: Any) -> Iterator[tuple[int, int, int, int]]:
    """Yields rectangles (first row, end row, first column, end column) that cover the wall cells [H, W] once each."""
    open_cells = walls.copy()
    for row, col in np.argwhere(walls):
        if not open_cells[row, col]:
            continue
        free = np.flatnonzero(~open_cells[row, col:])
        right = col + (free[0] if free.size else open_cells.shape[1] - col)
        broken = np.flatnonzero(~open_cells[row:, col:right].all(1))
        bottom = row + (broken[0] if broken.size else open_cells.shape[0] - row)
        open_cells[row:bottom, col:right] = False
        yield int(row), int(bottom), int(col), int(right)


def box_around(top: int, bottom: int, left: int, right: int, cell_size: float) -> Wall:
    """Returns the wall over rows [top, bottom) and columns [left, right)."""
    middle_x, middle_y = (top + bottom - 1) / 2, (left + right - 1) / 2
    return (
        middle_x * cell_size,
        middle_y * cell_size,
        (bottom - top) / 2 * cell_size,
        (right - left) / 2 * cell_size,
    )
