"""Maps drawn as text, and the shortest ways through them."""

from __future__ import annotations

from typing import Any

import numpy as np


def parse_map(rows: tuple[str, ...]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns [H, W] bool, true where the drawing has a wall (#)."""
    return np.array([[symbol == "#" for symbol in row] for row in rows])


def all_cells(height: int, width: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Returns [H, W, 2], row and column of every cell."""
    return np.moveaxis(np.indices((height, width), np.int32), 0, -1)


def all_shortest_paths(walls: np.ndarray[Any, np.dtype[np.bool_]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns [H, W, H, W], steps between any two free cells by breadth-first search; infinite if there is no way."""
    height, width = walls.shape
    paths = np.full((height, width, height, width), np.inf, np.float32)
    for start in np.argwhere(~walls):
        from_start = paths[tuple(start)]
        from_start[tuple(start)] = 0
        frontier = [tuple(start)]
        while frontier:
            row, col = frontier.pop(0)
            for r, c in ((row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)):
                inside = 0 <= r < height and 0 <= c < width
                if inside and not walls[r, c] and np.isinf(from_start[r, c]):
                    from_start[r, c] = from_start[row, col] + 1
                    frontier.append((r, c))
    return paths
