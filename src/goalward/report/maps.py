"""Heat maps of what a policy thinks on every cell of a grid: V, and the action that it would choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from goalward.report.figures import STYLE, box_of
from goalward.stats.estimates import Floats

# Okabe and Ito's colours; they come round again after eight actions, and the numbers under the pointer tell.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
_LARGEST = 1e30  # value that is drawn


@dataclass(frozen=True)
class Survey:
    """What `run.media.save_survey` wrote. Axes: F ways to face, H rows, W columns."""

    facings: list[str]  # [F]
    actions: list[str]
    value: Floats  # [F, H, W], NaN where the agent cannot stand
    action: Floats  # [F, H, W], the same
    target: tuple[int, int]  # row, column

    @classmethod
    def parse(cls, content: dict[str, Any]) -> Self:
        """Returns the survey in a file; raises `KeyError`, `TypeError` or `ValueError` if it is none."""
        is_free = np.array(content["is_free"], bool)
        value, action = (np.where(is_free, np.array(content[name], np.float64), np.nan) for name in ("value", "action"))
        value[~(np.abs(value) < _LARGEST)] = np.nan  # of a critic that blew up
        row, column = content["target"]
        facings, actions = list(map(str, content["facings"])), list(map(str, content["actions"]))
        if value.shape != action.shape or value.shape != (len(facings), *is_free.shape):
            raise ValueError(f"maps of {value.shape} and {action.shape} do not fit {len(facings)} x {is_free.shape}")
        if is_free.ndim != 2 or not is_free.size:
            raise ValueError("the grid has no cells")
        if not (0 <= row < is_free.shape[0] and 0 <= column < is_free.shape[1]):
            raise ValueError("the target is not on the grid")
        if not np.all(np.isnan(action) | ((action >= 0) & (action < len(actions)))):
            raise ValueError(f"an action is not one of the {len(actions)} that are named")
        return cls(facings, actions, value, action, (int(row), int(column)))


def draw(survey: Survey, title: str) -> Figure:
    """Returns V and chosen actions, for every way to face."""
    facings = len(survey.facings)
    rows, columns = (1, 2) if facings == 1 else (2, facings)
    colours = ListedColormap([_COLOURS[i % len(_COLOURS)] for i in range(len(survey.actions))])
    known = survey.value[~np.isnan(survey.value)]
    lowest, highest = (known.min(), known.max()) if known.size else (0.0, 1.0)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.5 * columns + 0.6, 1.55 * rows + 0.75), layout="constrained")
        figure.suptitle(title, fontsize="medium")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for ax, facing, value in zip(axes[:facings], survey.facings, survey.value, strict=True):
            shown = _draw_map(ax, value, survey, cmap="viridis", vmin=lowest, vmax=highest)
            ax.set_title(f"V, {facing}" if facing else "V", fontsize="small")
        for ax, facing, action in zip(axes[facings:], survey.facings, survey.action, strict=True):
            _draw_map(ax, action, survey, cmap=colours, vmin=-0.5, vmax=len(survey.actions) - 0.5)
            ax.set_title(f"action, {facing}" if facing else "action", fontsize="small")
        figure.colorbar(shown, ax=axes[:facings], shrink=0.8)
        patches = [Patch(color=colours(i), label=name) for i, name in enumerate(survey.actions)]
        figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize="small")
    return figure


def hover_data(figure: Figure, survey: Survey) -> dict[str, Any]:
    """Returns what a script needs to show the number of a cell under the pointer; null where there is none."""
    figure.draw_without_rendering()
    maps = list(figure.axes)[: 2 * len(survey.facings)]
    numbers = np.concatenate([survey.value, survey.action])
    return {
        "maps": [
            {
                "box": box_of(figure, ax),
                "name": ax.get_title(),
                "names": survey.actions if i >= len(survey.facings) else [],
                "cells": [[None if np.isnan(v) else round(float(v), 3) for v in row] for row in cells],
            }
            for i, (ax, cells) in enumerate(zip(maps, numbers, strict=True))
        ]
    }


def _draw_map(ax: Axes, cells: Floats, survey: Survey, **colours: Any) -> Any:
    ax.set_xticks([])
    ax.set_yticks([])
    row, column = survey.target
    shown = ax.imshow(cells, interpolation="none", **colours)
    ax.plot([column], [row], marker="*", color="white", markeredgecolor="black", markersize=7, markeredgewidth=0.6)
    return shown
