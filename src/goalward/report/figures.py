"""Figures, drawn once by Matplotlib and used twice: in the page, and as SVG and PDF files for a paper.

A figure of the page follows the page's colours: its ink is `currentColor`, and its numbers are embedded beside it, so
that a script can show them under the pointer (`hover_data`).
"""

from __future__ import annotations

import html
import io
import itertools
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from goalward.stats import Interval
from goalward.stats.estimates import Floats

# Okabe and Ito's colours, which can be told apart with any kind of colour vision; dashes tell them apart in print.
_COLOURS = {"cppo": "#0072b2", "ppo": "#d55e00", "csac": "#e69f00", "icsac": "#009e73", "cdqn": "#cc79a7"}
_MORE_COLOURS = ("#56b4e9", "#009e73", "#cc79a7", "#e69f00", "#d55e00", "#0072b2")
_DASHES = ("-", "--", ":", "-.")
_INK = "#010203"  # stands for the page's own colour of text

STYLE: Any = {  # Matplotlib's types ask for a literal of its names
    "font.size": 8,
    "figure.facecolor": "none",  # what is behind shows through, be it paper or a dark page
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "goalward",  # the same figure is the same file
    "pdf.fonttype": 42,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar in a name is a dollar
}


Styles = dict[str, tuple[str, str]]  # method -> colour and dashes


@dataclass(frozen=True)
class Line:
    """One method in a panel."""

    name: str
    x: Floats  # [P]
    interval: Interval  # of [P]


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    lines: Sequence[Line]
    x_label: str = "environment steps"
    y_label: str = "win rate, IQM"
    y_range: tuple[float, float] = (0.0, 1.0)
    x_ticks: Sequence[tuple[float, str]] = ()  # where x is not a number of steps
    names_places: bool = False  # whether every x has a name of its own, rather than being a number
    ceiling: float | None = None  # a dotted line that no method can exceed
    inset: Sequence[tuple[str, Interval]] = ()  # probability that the reference does better than each of these


def styles_of(methods: Iterable[str]) -> Styles:
    """Returns a colour and a dash pattern for every method, the same for the same set of methods.

    Colours of their own for the plain algorithms; variants of one take the next that are free.
    """
    names = list(dict.fromkeys(methods))
    chosen = {name: (_COLOURS[name], "-") for name in names if name in _COLOURS}
    taken = {colour for colour, _ in chosen.values()}
    free = [(colour, dash) for dash in _DASHES for colour in _MORE_COLOURS if dash != "-" or colour not in taken]
    rest = [name for name in names if name not in chosen]
    return chosen | dict(zip(rest, itertools.cycle(free)))


def draw(panels: Sequence[Panel], columns: int = 1, *, styles: Styles | None = None, legend: bool = False) -> Figure:
    """Returns a figure of panels in rows of `columns`."""
    rows = -(-len(panels) // columns)
    styles = styles or styles_of(line.name for panel in panels for line in panel.lines)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.9 * columns, 2.1 * rows + 0.3 * legend), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for ax in axes[len(panels) :]:
            ax.remove()
        for ax, panel in zip(axes[: len(panels)], panels, strict=True):
            _draw_panel(ax, panel, styles)
        if legend:
            handles = {str(line.get_label()): line for ax in figure.axes for line in ax.get_lines() if line.get_gid()}
            figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4)
    return figure


def _draw_panel(ax: Axes, panel: Panel, styles: Styles) -> None:
    ax.set_title(panel.title, fontsize="medium")
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)
    ax.set_ylim(*panel.y_range)
    for line in panel.lines:
        colour, dash = styles[line.name]
        ax.fill_between(line.x, line.interval.low, line.interval.high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(line.x, line.interval.estimate, dash, color=colour, label=line.name, linewidth=1.4, gid="line")
    if panel.ceiling is not None:
        ax.axhline(panel.ceiling, color=_INK, linewidth=0.8, linestyle=":")
    if panel.x_ticks:
        ax.set_xticks([place for place, _ in panel.x_ticks], [name for _, name in panel.x_ticks])
    else:
        ax.set_xlim(left=0)
        ax.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
    if panel.inset:
        _draw_inset(ax.inset_axes((0.55, 0.12, 0.42, 0.12 + 0.08 * len(panel.inset))), panel.inset, styles)


def _draw_inset(ax: Axes, compared: Sequence[tuple[str, Interval]], styles: Styles) -> None:
    """Draws the probability that the reference does better than each method; one half is the line of no difference."""
    for place, (name, found) in enumerate(compared):
        colour, _ = styles[name]
        ax.plot([found.low, found.high], [place, place], color=colour, linewidth=2)
        ax.plot([found.estimate], [place], "o", color=colour, markersize=3)
    ax.axvline(0.5, color=_INK, linewidth=0.5, linestyle=":")
    ax.set_xlim(-0.05, 1.05)
    ax.set_ylim(-0.6, len(compared) - 0.4)
    ax.set_xticks([0, 0.5, 1], ["0", "½", "1"], fontsize=6)
    ax.set_yticks([])
    ax.set_title("P(better)", fontsize=6, pad=1)
    ax.patch.set_alpha(0)


def as_file(figure: Figure, kind: str) -> bytes:
    """Returns a figure as an SVG or PDF file with black ink, the same bytes for the same figure."""
    content = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "ModDate": None}}
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # text stays text, whatever Matplotlib can draw itself
        figure.savefig(content, format=kind, metadata=dates[kind])
    return content.getvalue()


def as_inline_svg(figure: Figure, label: str) -> str:
    """Returns a figure as an element of the page, with its ink in the page's colour."""
    text = as_file(figure, "svg").decode()
    element = text[text.index("<svg") :]
    element = re.sub(r'(<svg[^>]*?) (width|height)="[^"]*"', r"\1", element)
    element = re.sub(r'(<svg[^>]*?) (width|height)="[^"]*"', r"\1", element)
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    return element.replace(_INK, "currentColor").replace(
        "<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1
    )


def hover_data(figure: Figure, panel: Panel, styles: Styles) -> dict[str, Any]:
    """Returns what a script needs to show a panel's numbers under the pointer, in the units of the SVG's view box."""
    figure.draw_without_rendering()
    ax = figure.axes[0]
    return {
        "box": box_of(figure, ax),
        "x": list(ax.get_xlim()),
        "heading": f"{panel.x_label} #" if panel.x_ticks else "# steps",
        "ticks": {f"{place:g}": name for place, name in panel.x_ticks} if panel.names_places else None,
        "lines": [
            {
                "name": line.name,
                "colour": styles[line.name][0],
                "x": line.x.tolist(),
                **{key: [round(float(v), 4) for v in values] for key, values in line.interval._asdict().items()},
            }
            for line in panel.lines
        ],
    }


def box_of(figure: Figure, ax: Axes) -> list[float]:
    """Returns left, top, width and height of axes in the units of the SVG's view box."""
    scale = 72 / figure.dpi
    box = ax.get_window_extent()
    height = figure.get_figheight() * 72
    return [round(v, 1) for v in (box.x0 * scale, height - box.y1 * scale, box.width * scale, box.height * scale)]
