"""Pictures of the built-in tasks: cells, discs and rings on a square canvas, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

Image = np.ndarray[Any, np.dtype[np.uint8]]
Colour = tuple[int, int, int]

FLOOR: Colour = (247, 247, 244)
GRID_LINE: Colour = (228, 228, 222)
WALL: Colour = (58, 66, 82)
# Okabe and Ito's palette, which colour-blind readers can tell apart.
AGENT_COLOURS: tuple[Colour, ...] = (
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
)
_OVERSAMPLE = 3


class Canvas:
    """A square picture of a world whose coordinates run from 0 to `extent`, x to the right and y downwards."""

    def __init__(self, extent: float, pixels: int = 192) -> None:
        self._size = pixels * _OVERSAMPLE
        self._scale = self._size / extent
        self._image = np.empty((self._size, self._size, 3), np.float32)
        self._image[:] = FLOOR
        centre = (np.arange(self._size) + 0.5) / self._scale
        self._x, self._y = np.meshgrid(centre, centre)

    def cell(self, x: float, y: float, colour: Colour) -> None:
        """Fills the unit square whose corner is (x, y)."""
        x0, y0, x1, y1 = (round(v * self._scale) for v in (x, y, x + 1, y + 1))
        self._image[y0:y1, x0:x1] = colour

    def grid(self, lines: int) -> None:
        """Draws thin lines at whole coordinates."""
        for k in range(1, lines):
            at = round(k * self._scale)
            self._image[at - 1 : at + 1] = GRID_LINE
            self._image[:, at - 1 : at + 1] = GRID_LINE

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """Draws a filled disc."""
        self._image[np.hypot(self._x - x, self._y - y) <= radius] = colour

    def ring(self, x: float, y: float, radius: float, width: float, colour: Colour) -> None:
        """Draws a circle's outline."""
        self._image[np.abs(np.hypot(self._x - x, self._y - y) - radius) <= width / 2] = colour

    def image(self) -> Image:
        """Returns the picture, uint8 [pixels, pixels, 3], smoothed."""
        small = self._size // _OVERSAMPLE
        blocks = self._image.reshape(small, _OVERSAMPLE, small, _OVERSAMPLE, 3)
        return blocks.mean((1, 3)).astype(np.uint8)


def draw_agents(
    canvas: Canvas, positions: Any, targets: Any, *, radius: float, target_radius: float, offset: float = 0.0
) -> None:
    """Draws every agent as a disc and its target as a ring of the same colour; coordinates are (y, x)."""
    for index, (position, target) in enumerate(zip(np.asarray(positions), np.asarray(targets), strict=True)):
        colour = AGENT_COLOURS[index % len(AGENT_COLOURS)]
        canvas.ring(target[1] + offset, target[0] + offset, target_radius, 0.35 * target_radius, colour)
        canvas.disc(position[1] + offset, position[0] + offset, radius, colour)
