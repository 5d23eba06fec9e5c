"""One HTML page that needs nothing but itself, and beside it figures for a paper and tables as CSV and LaTeX.

Names of tasks, runs and settings are whatever those who made the runs wrote: the template escapes every one of them,
and the page's own policy forbids it to load or send anything.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from goalward import __version__
from goalward.errors import UserError
from goalward.report import figures, maps
from goalward.report.collect import Collection, marl_eval_data, series_of
from goalward.report.sections import Section, sections
from goalward.report.tables import counted
from goalward.stats.intervals import TRUSTED_RUNS, are_too_few


@dataclass(frozen=True)
class Chart:
    """A panel as the page shows it."""

    id: str
    svg: Markup
    data: dict[str, Any]


def write_report(found: Collection, out: Path) -> Path:
    """Returns the page; figures and tables lie in folders beside it, and all results in the MARL-eval layout."""
    parts = list(sections(found))
    for part in parts:
        if part.panels:
            figure = figures.draw(part.panels, min(part.columns, len(part.panels)), legend=True)
            for kind in ("svg", "pdf"):
                _write(out / "figures" / f"{part.name}.{kind}", figures.as_file(figure, kind))
        for i, (title, survey) in enumerate(part.maps):
            for kind in ("svg", "pdf"):
                _write(out / "figures" / f"{part.name}-{i}.{kind}", figures.as_file(maps.draw(survey, title), kind))
        for table in part.tables:
            _write(out / "tables" / f"{table.name}.csv", table.to_csv().encode())
            _write(out / "tables" / f"{table.name}.tex", table.to_latex().encode())
    _write(out / "marl_eval.json", json.dumps(marl_eval_data(series_of(found.runs))).encode())
    page = out / "index.html"
    _write(page, render(found, parts).encode())
    return page


def render(found: Collection, parts: list[Section]) -> str:
    """Returns the page's text."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    folder = resources.files("goalward") / "report"
    styles = figures.styles_of(line.name for part in parts for panel in part.panels for line in panel.lines)
    titles = [study.title for study in found.studies]
    return environment.from_string((folder / "template.html").read_text(encoding="utf-8")).render(
        title=" · ".join(titles) or "Runs",
        summary=f"{counted(len(found.runs), 'run')}, goalward {__version__}.",
        warnings=_warnings(found),
        css=Markup((folder / "page.css").read_text(encoding="utf-8")),
        script=Markup((folder / "page.js").read_text(encoding="utf-8")),
        sections=[
            {
                "name": part.name,
                "title": part.title,
                "text": part.text,
                "charts": [_chart(f"{part.name}-{i}", panel, styles) for i, panel in enumerate(part.panels)],
                "legend": _legend(part, styles),
                "maps": [_map(f"{part.name}-{i}", *named) for i, named in enumerate(part.maps)],
                "tables": part.tables,
                "configs": [
                    {
                        "title": f"{run.task}, {run.method}, {run.path.name}",
                        "config": run.plan.to_toml(),
                        "versions": run.versions.text,
                    }
                    for run in part.configs
                ],
                "pictures": [
                    {"source": _data_address(run.picture), "caption": f"{run.task}, {run.method}"}
                    for run in part.pictures
                    if run.picture is not None
                ],
            }
            for part in parts
        ],
    )


def _chart(name: str, panel: figures.Panel, styles: figures.Styles) -> Chart:
    figure = figures.draw([panel], styles=styles)
    return Chart(name, Markup(figures.as_inline_svg(figure, panel.title)), figures.hover_data(figure, panel, styles))


def _map(name: str, title: str, survey: maps.Survey) -> Chart:
    figure = maps.draw(survey, title)
    return Chart(name, Markup(figures.as_inline_svg(figure, title)), maps.hover_data(figure, survey))


def _legend(part: Section, styles: figures.Styles) -> list[tuple[str, str, str]]:
    """Returns name, colour and border style of every method in a section."""
    border = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "double"}
    names = dict.fromkeys(line.name for panel in part.panels for line in panel.lines)
    return [(name, styles[name][0], border[styles[name][1]]) for name in names]


def _warnings(found: Collection) -> list[str]:
    """Returns what a reader must know before believing a number."""
    warnings = [
        f"'{study.title}' was shrunk to {study.scale:g} of its declared size: {study.seeds} seeds, "
        f"{study.steps:,} steps each. Its numbers are not those of the full study."
        for study in found.studies
        if study.scale < 1
    ]
    scores = [series.win_rate for series in series_of(found.runs)]
    if are_too_few(scores):
        fewest = min(seeds.shape[-1] for seeds in scores)
        warnings.append(
            f"Some results rest on {counted(fewest, 'seed')}. With fewer than {TRUSTED_RUNS} the intervals come out "
            "too narrow."
        )
    unfinished = sum(run.results is None for run in found.runs)
    if unfinished:
        warnings.append(
            f"Not come to the end: {counted(unfinished, 'run')}. Curves by task show what there is; tables, verdicts "
            "and curves by suite leave it out."
        )
    if found.missing:
        warnings.append(f"Without a finished run: {counted(len(found.missing), 'cell')}, listed at the end.")
    return warnings


def _data_address(path: Path) -> str:
    return f"data:image/gif;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"Expected '{path}' to be writable; {error.strerror or error}.") from error
