"""Pictures of tasks: cells, discs and rings on a square canvas, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

Image = np.ndarray[Any, np.dtype[np.uint8]]
Colour = tuple[int, int, int]

FLOOR: Colour = (247, 247, 244)
GRID_LINE: Colour = (228, 228, 222)
WALL: Colour = (58, 66, 82)
# Okabe and Ito's palette, which colour-blind readers can tell apart; from the seventh on, each is the colour of
# moderate saturation that lies farthest, in CIELAB, from those before it and from the floor.
AGENT_COLOURS: tuple[Colour, ...] = (
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (90, 90, 0),
    (90, 45, 150),
    (180, 210, 75),
    (120, 45, 30),
    (255, 165, 135),
    (240, 75, 105),
    (165, 150, 255),
    (15, 120, 0),
    (165, 0, 120),
    (90, 225, 225),
    (165, 180, 120),
    (30, 75, 45),
    (75, 225, 135),
    (255, 135, 240),
    (105, 45, 90),
    (60, 135, 135),
    (225, 195, 255),
    (150, 120, 90),
)
_OVERSAMPLE = 3


class Canvas:
    """A square picture of a world whose coordinates run from 0 to `extent`, x to the right and y downwards."""

    def __init__(self, extent: float, pixels: int = 192) -> None:
        self._size = pixels * _OVERSAMPLE
        self._scale = self._size / extent
        self._image = np.tile(np.asarray(FLOOR, np.uint8), (self._size, self._size, 1))
        self._centres = (np.arange(self._size) + 0.5) / self._scale

    def cell(self, x: float, y: float, colour: Colour, size: float = 1.0) -> None:
        """Fills the square whose corner is (x, y), as far as it lies on the canvas."""
        x0, y0, x1, y1 = (max(round(v * self._scale), 0) for v in (x, y, x + size, y + size))
        self._image[y0:y1, x0:x1] = colour

    def grid(self, lines: int) -> None:
        """Draws thin lines at whole coordinates."""
        for k in range(1, lines):
            at = round(k * self._scale)
            self._image[at - 1 : at + 1] = GRID_LINE
            self._image[:, at - 1 : at + 1] = GRID_LINE

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """Draws a filled disc."""
        part, xs, ys = self._within(x - radius, y - radius, x + radius, y + radius)
        part[np.hypot(xs - x, ys - y) <= radius] = colour

    def ring(self, x: float, y: float, radius: float, width: float, colour: Colour) -> None:
        """Draws a circle's outline."""
        outer = radius + width / 2
        part, xs, ys = self._within(x - outer, y - outer, x + outer, y + outer)
        part[np.abs(np.hypot(xs - x, ys - y) - radius) <= width / 2] = colour

    def line(self, start: tuple[float, float], end: tuple[float, float], width: float, colour: Colour) -> None:
        """Draws a straight line between two points (x, y), with round ends."""
        (x0, y0), (x1, y1), half = start, end, width / 2
        part, xs, ys = self._within(min(x0, x1) - half, min(y0, y1) - half, max(x0, x1) + half, max(y0, y1) + half)
        dx, dy = x1 - x0, y1 - y0
        along = np.clip(((xs - x0) * dx + (ys - y0) * dy) / max(dx * dx + dy * dy, 1e-12), 0.0, 1.0)
        part[np.hypot(xs - x0 - along * dx, ys - y0 - along * dy) <= half] = colour

    def image(self) -> Image:
        """Returns the picture, uint8 [pixels, pixels, 3], smoothed."""
        # Sums of slices take a thirtieth of the time of a mean over two axes of blocks.
        rows: Any = sum(self._image[k::_OVERSAMPLE].astype(np.uint16) for k in range(_OVERSAMPLE))
        blocks: Any = sum(rows[:, k::_OVERSAMPLE] for k in range(_OVERSAMPLE))
        return (blocks // _OVERSAMPLE**2).astype(np.uint8)

    def _within(self, x0: float, y0: float, x1: float, y1: float) -> tuple[Any, Any, Any]:
        """Returns the part of the picture between two corners, and the coordinates of its pixels, [1, w] and [h, 1]."""
        left, right, top, bottom = np.searchsorted(self._centres, (x0, x1, y0, y1))
        part = self._image[top : bottom + 1, left : right + 1]
        return part, self._centres[None, left : right + 1], self._centres[top : bottom + 1, None]


def draw_agents(
    canvas: Canvas, positions: Any, targets: Any, *, radius: float, target_radius: float, offset: float = 0.0
) -> None:
    """Draws every agent as a disc and its target as a ring of the same colour; coordinates are (y, x)."""
    for index, (position, target) in enumerate(zip(np.asarray(positions), np.asarray(targets), strict=True)):
        colour = AGENT_COLOURS[index % len(AGENT_COLOURS)]
        canvas.ring(target[1] + offset, target[0] + offset, target_radius, 0.35 * target_radius, colour)
        canvas.disc(position[1] + offset, position[0] + offset, radius, colour)
