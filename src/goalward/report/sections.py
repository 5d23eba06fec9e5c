"""What the report says, part by part; how it looks is the page's matter.

A part is left out where no run has anything to say on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from goalward import stats
from goalward.envs.tasks import TASKS
from goalward.report import summary
from goalward.report.collect import Collection, RunRecord, Series, series_of
from goalward.report.figures import Line, Panel
from goalward.report.maps import Survey
from goalward.report.paper import TABLE_2
from goalward.report.tables import Cell, Table, counted, number, timing, with_interval
from goalward.stats.estimates import Floats

_BASELINES = ("csac", "icsac", "cdqn")  # the contrastive ones, of which the paper has one for each suite
_TASKS_IN_PAPER = 18


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    name: str  # of its anchor and its files
    title: str
    text: str = ""
    panels: Sequence[Panel] = ()
    columns: int = 3  # of the panels, in the files for a paper
    tables: Sequence[Table] = ()
    pictures: Sequence[RunRecord] = ()
    maps: Sequence[tuple[str, Survey]] = ()
    configs: Sequence[RunRecord] = ()


def sections(found: Collection) -> Iterator[Section]:
    """Yields all that some runs have to say."""
    series = series_of(found.runs)
    finished = [s for s in series if s.is_finished]
    if finished:
        yield _aggregates(finished)
        yield _suites(finished)
        yield from _dense_rewards(finished)
    yield _tasks(series, finished)
    yield from _variants(series)
    yield from _scaling(finished)
    if finished:
        yield _profiles(finished)
    pictures = [run for run in found.runs if run.picture is not None]
    if pictures:
        yield Section("episodes", "Episodes", "A green frame means solved, an orange one not.", pictures=pictures)
    yield from _surveys(found.runs)
    yield _runs(found.runs)
    if found.missing:
        rows = [[Cell(cell.study), Cell(cell.cell), Cell(cell.reason)] for cell in found.missing]
        table = Table("missing", ["study", "cell", "last heard of it"], rows)
        yield Section("missing", "Cells without a finished run", tables=[table])


def _aggregates(series: list[Series]) -> Section:
    """Returns the counterpart of the paper's Table 2."""
    aggregates = summary.aggregates(series)
    beside = any(found.suite in TABLE_2 for found in aggregates)
    rows = []
    for found in aggregates:
        reported = TABLE_2.get(found.suite, {}).get(found.method)
        rows.append(
            [
                Cell(found.suite),
                Cell(found.method),
                *(with_interval(found.estimates[name]) for name in ("iqm", "mean", "median", "optimality gap")),
                *([Cell("") if reported is None else with_interval(reported)] if beside else []),
                number(found.num_tasks),
                number(found.num_seeds),
            ]
        )
    head = ["suite", "method", "IQM", "mean", "median", "optimality gap", *(["paper's IQM"] if beside else [])]
    head += ["tasks", "seeds"]
    table = Table("aggregates", head, rows, numbers=frozenset(range(2, len(head))))
    text = (
        "Win rates over all seeds and tasks of a suite: of the best policy of a seed, where that was measured, else of "
        "its last. IQM: mean of the middle half. Optimality gap: what is missing to 1. "
        "In brackets: 95 % intervals of the stratified bootstrap."
    )
    paper = " The paper's column is its Table 2: all tasks of the suite, 80 million steps."
    return Section("suites", "By suite", text + paper * beside, tables=[table])


def _suites(series: list[Series]) -> Section:
    """Returns the counterpart of the paper's Figure 1."""
    reference = summary.reference_of(series)
    compared = {(c.suite, c.other): c.improvement for c in summary.comparisons(series, reference)}
    panels = []
    for suite in dict.fromkeys(s.suite for s in series):
        members = [s for s in series if s.suite == suite]
        inset = [(other, found) for (where, other), found in compared.items() if where == suite]
        panels.append(Panel(suite, _lines(members), inset=inset))
    text = f"Small: the probability that a run of {reference} does better than one of another method."
    return Section("curves", "Sample efficiency by suite", text if compared else "", panels)


def _dense_rewards(series: list[Series]) -> Iterator[Section]:
    """Yields the counterpart of the paper's Figure 2."""
    panels = []
    for kind in ("discrete", "continuous"):
        tasks = {name for name, task in TASKS.items() if task.actions == kind}
        both = [s for s in series if s.task in tasks and s.method in ("cppo", "ppo")]
        shared = {s.task for s in both if s.method == "cppo"} & {s.task for s in both if s.method == "ppo"}
        members = [s for s in both if s.task in shared]
        if members:
            panels.append(Panel(f"{kind} actions, {counted(len(shared), 'task')}", _lines(members)))
    if panels:
        text = "cppo without a reward beside ppo with the suite's dense one, on the tasks that both were run on."
        yield Section("dense", "Beside dense rewards", text, panels, columns=2)


def _tasks(series: list[Series], finished: list[Series]) -> Section:
    """Returns the counterpart of the paper's Figure 5, and who does better where."""
    reference = summary.reference_of(finished or series)
    ceilings = {s.task: _ceilings(s) for s in series}
    panels = [
        Panel(task, _lines([s for s in series if s.task == task]), ceiling=found.get("win_rate"))
        for task, found in ceilings.items()
    ]
    measures = list(dict.fromkeys(name for s in finished for name in s.measures if name != "win_rate"))
    verdicts = {(task, c.other): v for c in summary.comparisons(finished, reference) for task, v in c.verdicts.items()}
    rows = []
    for s in finished:
        verdict = verdicts.get((s.task, s.method))
        rows.append(
            [
                Cell(s.task),
                Cell(s.method),
                _mean(s.final),
                Cell("") if verdict is None else Cell(verdict, kind=verdict),
                number(len(s.final)),
                *(_mean(s.measures[name]) if name in s.measures else Cell("") for name in measures),
            ]
        )
    head = ["task", "method", "mean win rate", f"{reference} is", "seeds", *measures]
    table = Table("tasks", head, rows, frozenset({2, *range(4, len(head))}))
    text = " ".join([*_counts(finished, reference, verdicts), *_ceilings_in_words(ceilings)])
    return Section("tasks", "By task", text, panels, tables=[table] if rows else [])


def _mean(values: Floats) -> Cell:
    return with_interval(stats.interval(summary.generator([values]), [values], stats.mean))


def _ceilings(series: Series) -> Mapping[str, float]:
    """Returns what no policy can exceed, unless the task was played with other arguments than its own."""
    task = TASKS.get(series.task)
    return task.ceilings if task and not any(run.plan.run.env for run in series.runs) else {}


def _ceilings_in_words(ceilings: dict[str, Mapping[str, float]]) -> Iterator[str]:
    for task, found in ceilings.items():
        if found:
            bounds = TASKS[task].ceilings_in_words
            yield f"On {task} no policy can exceed {bounds}: other targets cannot be reached. The dotted line says so."


def _counts(series: list[Series], reference: str, verdicts: dict[tuple[str, str], stats.Verdict]) -> Iterator[str]:
    """Yields the verdicts in words, as the paper counts them: against the contrastive baselines, and against each."""
    final = {(s.task, s.method): s.final.mean() for s in series}
    best_baseline: dict[str, str] = {}
    for task, other in verdicts:
        if other in _BASELINES and final[task, other] > final.get((task, best_baseline.get(task, "")), -1.0):
            best_baseline[task] = other
    if len(set(best_baseline.values())) > 1:
        said = [verdicts[task, other] for task, other in best_baseline.items()]
        yield _count(reference, "the best contrastive baseline of each task", said)
    for other in dict.fromkeys(other for _, other in verdicts):
        yield _count(reference, other, [verdict for (_, method), verdict in verdicts.items() if method == other])
    if len(best_baseline) == _TASKS_IN_PAPER:
        yield "The paper: better than its baselines on 14 of 18 tasks, level with PPO on 12."
    ours = {s.task: s for s in series if s.method == reference}
    unequal = [s for s in series if s.task in ours and not summary.have_as_many_steps(s, ours[s.task])]
    if unequal:
        named = ", ".join(f"{s.method} on {s.task} ({s.steps[-1]:,.0f} steps)" for s in unequal)
        yield f"Not compared, since {reference} was trained for another number of steps: {named}."


def _count(reference: str, other: str, said: list[stats.Verdict]) -> str:
    counts = ", ".join(f"{word} on {said.count(word)}" for word in get_args(stats.Verdict))
    return f"{reference} against {other}, on {counted(len(said), 'task')} at 95 %: {counts}."


def _variants(series: list[Series]) -> Iterator[Section]:
    """Yields the counterpart of the paper's Figure 3: an algorithm with several goals, rewards or settings."""
    panels = []
    for task, algo in dict.fromkeys((s.task, s.runs[0].plan.run.algo) for s in series):
        members = [s for s in series if s.task == task and s.runs[0].plan.run.algo == algo]
        if len(members) > 1:
            panels.append(Panel(f"{task}, {algo}", _lines(members)))
    if panels:
        yield Section("variants", "Goals, rewards and settings", "One algorithm, in several ways.", panels, columns=2)


def _scaling(series: list[Series]) -> Iterator[Section]:
    """Yields the counterpart of the paper's Figure 4: Connector by the number of agents."""
    agents = {name: task.num_agents for name, task in TASKS.items() if task.suite == "connector"}
    members = sorted((s for s in series if s.task in agents), key=lambda s: agents[s.task])
    tasks = list(dict.fromkeys(s.task for s in members))
    if len(tasks) < 2:
        return
    lines = []
    for method in dict.fromkeys(s.method for s in members):
        found = {
            s.task: stats.interval(summary.generator([s.final]), [s.final], stats.iqm)
            for s in members
            if s.method == method
        }
        x = np.array([tasks.index(task) for task in found], np.float64)
        lines.append(Line(method, x, stats.Interval(*(np.array(part) for part in zip(*found.values(), strict=True)))))
    ticks = [(place, f"{task.partition('/')[2]}") for place, task in enumerate(tasks)]
    panel = Panel("connector", lines, x_label="grid and number of agents", x_ticks=ticks, names_places=True)
    yield Section("scaling", "Larger grids, more agents", panels=[panel], columns=1)


def _profiles(series: list[Series]) -> Section:
    """Returns how large a share of runs exceeds any win rate, by suite."""
    levels = np.linspace(0.0, 1.0, 51)
    panels = []
    for suite in dict.fromkeys(s.suite for s in series):
        lines = []
        for method in dict.fromkeys(s.method for s in series if s.suite == suite):
            scores = [s.final for s in series if (s.suite, s.method) == (suite, method)]
            lines.append(Line(method, levels, stats.profile(summary.generator(scores), scores, levels)))
        ticks = [(level, f"{level:g}") for level in (0.0, 0.25, 0.5, 0.75, 1.0)]
        panels.append(Panel(suite, lines, x_label="win rate", y_label="share of runs above", x_ticks=ticks))
    return Section("profiles", "Performance profiles", panels=panels)


def _surveys(runs: list[RunRecord]) -> Iterator[Section]:
    """Yields what policies think on grids."""
    maps = [(f"{run.task}, {run.method}", run.survey) for run in runs if run.survey is not None]
    if maps:
        text = (
            "The start of one episode with the agent put on every cell in turn; the star is its goal. "
            "V is in the units of the method: minus a distance of representations, or a discounted reward."
        )
        yield Section("maps", "Values and chosen actions", text, maps=maps)


def _runs(runs: list[RunRecord]) -> Section:
    """Returns where every number comes from."""
    head = [
        "task",
        "method",
        "seeds",
        "steps",
        "steps/s",
        "minutes",
        "preset",
        "device",
        "goalward",
        "jax",
        "commit",
        "run",
    ]
    rows = []
    for run in runs:
        steps = run.steps[-1] * len(run.seeds)
        rows.append(
            [
                Cell(run.task),
                Cell(run.method),
                Cell(_span(run.seeds)),
                number(run.steps[-1]),
                timing(steps / run.seconds if run.seconds else 0.0),
                timing(run.seconds / 60, ".1f"),
                Cell(run.plan.run.preset),
                Cell(", ".join(run.versions.devices)),
                Cell(run.versions.goalward),
                Cell(run.versions.jax),
                Cell(run.versions.commit),
                Cell(run.path.name),
            ]
        )
    table = Table("runs", head, rows, frozenset({3, 4, 5}))
    text = "Steps are per seed; steps per second are over all seeds, compilation and evaluation included."
    return Section("runs", "Runs", text, tables=[table], configs=runs)


def _lines(series: list[Series]) -> list[Line]:
    return [Line(c.method, c.steps, c.interval) for c in summary.curves(series)]


def _span(seeds: tuple[int, ...]) -> str:
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
