"""Finds runs on disk and reads what the report needs of them; no checkpoint is opened and no code is loaded.

A run is any directory with a config.toml and a metrics.jsonl. What a study adds is in its study.toml: how its cells are
called, how far it was scaled down, and so which of them are missing.

Axes: P evaluations, S seeds.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from goalward.algos.base import ALGORITHMS
from goalward.envs.tasks import TASKS
from goalward.errors import UserError, brief
from goalward.report.maps import Survey
from goalward.run.config import Plan
from goalward.run.directory import RunDirectory
from goalward.stats.estimates import Floats
from goalward.studies.declare import Study
from goalward.studies.directory import StudyDirectory, last_words

T = TypeVar("T")


@dataclass(frozen=True)
class Versions:
    """What produced a run's numbers, as far as it is known."""

    goalward: str = ""
    jax: str = ""
    commit: str = ""
    devices: tuple[str, ...] = ()
    text: str = ""  # the whole file

    @classmethod
    def parse(cls, content: dict[str, Any]) -> Self:
        """Returns what is in a versions.json; raises `TypeError` or `AttributeError` if it is none."""
        devices, packages = content.get("devices", []), content.get("packages", {})
        return cls(
            goalward=str(content.get("goalward", "")),
            jax=str(packages.get("jax", "")),
            commit=str(content.get("commit") or "")[:10],
            devices=tuple(sorted({str(device) for device in devices})),
            text=json.dumps(content, indent=1),
        )


@dataclass(frozen=True)
class Results:
    """What a run writes at its end."""

    task: str
    best: dict[str, Floats]  # measure -> [S], of the best policies
    by_seed: dict[str, Any]  # the seeds' part of the MARL-eval layout


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run with all its seeds."""

    path: Path
    task: str
    method: str  # how it is called in the report: `cppo`, `ppo reward=sparse`
    place: int  # among the methods of its task
    plan: Plan
    versions: Versions
    seeds: tuple[int, ...]  # [S]
    steps: Floats  # [P], environment steps per seed
    win_rate: Floats  # [P, S]
    results: Results | None  # once the run has come to its end
    seconds: float  # compilation and evaluation included
    picture: Path | None
    survey: Survey | None  # what the policy thinks on every cell of a grid


@dataclass(frozen=True, kw_only=True)
class Series:
    """All runs of a method on a task, taken together."""

    task: str
    method: str
    steps: Floats  # [P]
    win_rate: Floats  # [P, S]
    measures: dict[str, Floats]  # name -> [S], of the best policies; empty until all runs have come to their end
    runs: tuple[RunRecord, ...]

    @property
    def is_finished(self) -> bool:
        """Whether all runs have come to their end, so that they can be judged."""
        return bool(self.measures)

    @property
    def final(self) -> Floats:
        """The win rates [S] that the seeds are judged by."""
        return self.measures["win_rate"]

    @property
    def suite(self) -> str:
        """The part of the task's name before the slash."""
        return self.task.partition("/")[0]


@dataclass(frozen=True)
class MissingCell:
    """A cell of a study without a finished run, and the last that was heard of it."""

    study: str
    cell: str
    reason: str


@dataclass(frozen=True)
class Collection:
    """Everything that a report is made of."""

    runs: list[RunRecord]
    studies: list[Study]
    missing: list[MissingCell]


def collect(paths: Sequence[Path]) -> Collection:
    """Returns the runs and studies below some directories, each once."""
    named: dict[Path, tuple[int, str]] = {}  # place and method of the runs of a study
    runs: dict[Path, RunDirectory] = {}
    seen: set[Path] = set()
    studies: list[Study] = []
    missing: list[MissingCell] = []
    for root in paths:
        if not root.is_dir():
            raise UserError(f"Expected '{root}' to be a directory with runs in it; there is none at that path.")
        for folder in _folders(root.resolve()):
            if folder in seen:
                continue
            seen.add(folder)
            study_directory, run = StudyDirectory(folder), RunDirectory(folder)
            if study_directory.declaration.is_file():
                study = study_directory.read()
                studies.append(study)
                named |= {study_directory.run(cell).path: (i, cell.method) for i, cell in enumerate(study.cells)}
                missing += _missing_cells(study_directory, study)
            if run.config.is_file() and run.metrics.is_file():
                runs[folder] = run
    records = [read_run(run, named.get(folder)) for folder, run in runs.items()]
    found = [record for record in records if record is not None]
    if not found:
        raise UserError(f"Expected runs that were evaluated below {', '.join(map(str, paths))}; found none.")
    return Collection(sorted(found, key=_place), studies, missing)


def _place(run: RunRecord) -> tuple[int, str, int, str, int, Path]:
    """Returns what runs are ordered by: tasks as in their table, methods as in theirs or in a study, then names."""
    tasks = list(TASKS)
    place = tasks.index(run.plan.run.task) if run.plan.run.task in tasks else len(tasks)
    return place, run.task, run.place, run.method, run.seeds[0], run.path


def read_run(directory: RunDirectory, named: tuple[int, str] | None = None) -> RunRecord | None:
    """Returns what a run has recorded so far, None if it has not been evaluated; `named`: its place and method."""
    plan = _plan(directory)
    records = directory.read_records()
    if plan.run.seeds > len(records):
        return None
    seeds = tuple(plan.seed_numbers)
    by_step: dict[int, dict[int, float]] = {}
    for record in records:
        by_step.setdefault(record["step"], {})[record["seed"]] = record["win_rate"]
    whole = {step: rates for step, rates in sorted(by_step.items()) if rates.keys() == set(seeds)}
    if not whole:
        return None
    try:
        steps = np.array(list(whole), np.float64)
        win_rate = np.array([[rates[seed] for seed in seeds] for rates in whole.values()], np.float64)
        seconds = float(max(record["elapsed"] for record in records))
        are_numbers = bool(np.isfinite(win_rate).all() and np.isfinite(steps).all())
    except OverflowError:  # digits that no float holds
        are_numbers = False
    if not are_numbers:
        raise UserError(f"Expected steps and win rates in '{directory.metrics}' to be numbers; found one that is none.")
    results = _parsed(directory.results, lambda content: _results(content, seeds))
    place, method = named or (list(ALGORITHMS).index(plan.run.algo), method_name(plan))
    picture = directory.media / "episodes.gif"
    return RunRecord(
        path=directory.path,
        task=results.task if results else plan.with_arguments(plan.run.task),
        method=method,
        place=place,
        plan=plan,
        versions=_parsed(directory.versions, Versions.parse) or Versions(),
        seeds=seeds,
        steps=steps,
        win_rate=win_rate,
        results=results,
        seconds=seconds,
        picture=picture if picture.is_file() else None,
        survey=_parsed(directory.media / "survey.json", Survey.parse),
    )


def _plan(directory: RunDirectory) -> Plan:
    try:
        return directory.plan()
    except UserError as error:
        raise UserError(f"In '{directory.config}': {error}") from error


def method_name(plan: Plan) -> str:
    """Returns the algorithm's name, with the goal and the reward where they are not the task's default.

    Only PPO learns from a reward; beside another method it says nothing.
    """
    task = TASKS.get(plan.run.task)
    chosen = [("goal", plan.run.goal, task and task.goals), ("reward", plan.run.reward, task and task.rewards)]
    named = [
        f"{key}={name}"
        for key, name, known in chosen
        if name and name != next(iter(known or ()), None) and (key == "goal" or plan.run.algo == "ppo")
    ]
    return " ".join([plan.run.algo, *named])


def series_of(runs: Iterable[RunRecord]) -> list[Series]:
    """Returns runs that can be taken together as one: of a task and method, with the same settings, other seeds.

    One that cannot, since it repeats a seed or was made in another way, has its directory added to its method's name.
    """
    runs = sorted(runs, key=lambda run: run.results is None)  # the plain name is for one that can be judged
    root = Path(os.path.commonpath([run.path.parent for run in runs])) if runs else Path()
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        alike = [members for members in groups.values() if _go_together(members, run)]
        names = (run.method, f"{run.method} ({run.path.relative_to(root)})", f"{run.method} ({run.path})")
        name = next(name for name in names if (run.task, name) not in groups or name is names[-1])
        (alike[0] if alike else groups.setdefault((run.task, name), [])).append(run)
    return [
        Series(
            task=task,
            method=method,
            steps=members[0].steps,
            win_rate=np.concatenate([run.win_rate for run in members], axis=1),
            measures=_measures(members),
            runs=tuple(members),
        )
        for (task, method), members in sorted(groups.items(), key=lambda group: _place(group[1][0]))
    ]


def _go_together(members: list[RunRecord], run: RunRecord) -> bool:
    first, taken = members[0], {seed for member in members for seed in member.seeds}
    return (
        (first.task, first.method) == (run.task, run.method)
        and (first.results is None) == (run.results is None)
        and taken.isdisjoint(run.seeds)
        and np.array_equal(first.steps, run.steps)
        and run.plan.is_reproducible  # else what was passed as an object may be another
        and _what_counts(first.plan) == _what_counts(run.plan)
    )


def _what_counts(plan: Plan) -> Plan:
    """Returns a plan without what may differ between runs of the same: seeds, and what is kept of them."""
    same: dict[str, Any] = {
        "seeds": 1,
        "first_seed": 0,
        "preset": "",
        "keep_checkpoints": 1,
        "checkpoint_share": 1.0,
        "render_episodes": 0,
    }
    return dataclasses.replace(plan, run=dataclasses.replace(plan.run, **same))


def _measures(members: list[RunRecord]) -> dict[str, Floats]:
    measured = [run.results.best if run.results else {} for run in members]
    shared = [name for name in measured[0] if all(name in other for other in measured)]
    return {name: np.concatenate([best[name] for best in measured]) for name in shared}


def _missing_cells(directory: StudyDirectory, study: Study) -> Iterator[MissingCell]:
    for cell in study.cells:
        if not directory.is_finished(cell):
            reason = last_words(directory.log(cell)) if directory.log(cell).is_file() else "not begun"
            yield MissingCell(study.name, str(cell), reason)


def marl_eval_data(series: Iterable[Series]) -> dict[str, Any]:
    """Returns all finished runs in one MARL-eval layout: environment -> task -> method -> seed -> evaluation."""
    merged: dict[str, Any] = {}
    for s in series:
        suite, _, name = s.task.rpartition("/")
        for run in s.runs:
            if run.results:
                methods = merged.setdefault(suite or name, {}).setdefault(name, {})
                # A comma is the one character that MARL-eval does not allow in a name.
                methods.setdefault(s.method.replace(",", ";"), {}).update(run.results.by_seed)
    return merged


def _results(results: dict[str, Any], seeds: tuple[int, ...]) -> Results:
    """Returns what is in the MARL-eval layout of one run."""
    ((suite, tasks),) = results.items()
    ((name, algos),) = tasks.items()
    (by_seed,) = algos.values()
    best = [by_seed[f"seed_{seed}"]["absolute_metrics"] for seed in seeds]
    measures = {measure: np.array([row[measure][0] for row in best], np.float64) for measure in best[0]}
    if not np.isfinite(measures["win_rate"]).all() or any(values.ndim != 1 for values in measures.values()):
        raise ValueError("a measure is no number")
    return Results(name if suite == name else f"{suite}/{name}", measures, by_seed)


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}")
        json.dumps(content, ensure_ascii=False).encode()  # raises for half a character, which no page can hold
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"Expected '{path}' to be an object of JSON, as the run wrote it; {brief(error)}.") from error
    return content


def _parsed(path: Path, parse: Callable[[dict[str, Any]], T]) -> T | None:
    """Returns what a JSON file holds, None if there is none; raises if it is not as the run wrote it."""
    content = _read_json(path)
    try:
        return None if content is None else parse(content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise UserError(f"Expected '{path}' to be as the run wrote it; {brief(error)}.") from error


def _folders(root: Path) -> Iterator[Path]:
    """Yields a directory and all below it in order of their names, without what runs keep for themselves."""
    for path, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - ({"checkpoints", "media"} if "config.toml" in files else set()))
        yield Path(path)
