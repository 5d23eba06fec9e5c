"""What a study consists of: a matrix of runs, declared in a TOML file.

    title = "PPO on Navix, sparse against shaped reward"
    seeds = 10
    steps = 80_000_000

    [[groups]]
    tasks = ["navix/fourrooms"]
    algos = ["ppo"]
    rewards = ["sparse", "shaped"]

The cells of a group are the product of its tasks and algorithms, and of its goals, rewards and variants (tables of
settings with a name) where it lists some. A cell is an ordinary run of several seeds.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from goalward.algos.settings import Count, check_fields, coerce_fields
from goalward.envs.tasks import TASKS
from goalward.errors import UserError, brief, unknown_name
from goalward.run.config import Plan, is_registered, make_plan

_LONGEST_NAME = 200  # bytes, of what becomes the name of a folder
FEWEST_SEEDS = 2  # that a study shrinks to: one says nothing about how much runs differ


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a study."""

    task: str
    algo: str
    goal: str | None = None
    reward: str | None = None
    variant: str | None = None  # the name of its settings
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """What tells it from other cells of its task: `cppo`, `cppo goal=distance`, `cppo symmetric`."""
        named = [f"{key}={name}" for key, name in (("goal", self.goal), ("reward", self.reward)) if name]
        return " ".join([self.algo, *named, *([self.variant] if self.variant else [])])

    @property
    def folder(self) -> Path:
        """Where its run lies within the study's directory."""
        parts = [*self.task.split("/"), self.method]
        return Path(*(re.sub(r"[^\w.,=+-]+", "-", part).strip(".") or "task" for part in parts))

    def __str__(self) -> str:
        return f"{self.task} with {self.method}"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Tasks and methods that are all combined with each other."""

    tasks: list[str]
    algos: list[str]
    goals: list[str] = field(default_factory=list)
    rewards: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)  # of all its cells
    variants: dict[str, Any] = field(default_factory=dict)  # name -> settings

    def cells(self) -> Iterator[Cell]:
        """Yields the combinations in the order in which they are declared."""
        absent: list[str | None] = [None]
        for task, algo, goal, reward, variant in itertools.product(
            self.tasks, self.algos, self.goals or absent, self.rewards or absent, list(self.variants) or absent
        ):
            settings = {**self.settings, **(self.variants[variant] if variant else {})}
            yield Cell(task=task, algo=algo, goal=goal, reward=reward, variant=variant, settings=settings)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How large every run of a study is; the paper's by default."""

    seeds: Count = 10
    steps: Count = 80_000_000
    preset: str | None = None  # None: each task's own
    together: bool = True  # train cells in one program that differ in traced settings alone

    def __post_init__(self) -> None:
        check_fields(self)


_PROTOCOL = [part.name for part in dataclasses.fields(Protocol)]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A declared study, whole or a part of it."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    seeds: int
    steps: int
    preset: str | None = None
    together: bool = True  # see `Protocol`
    settings: Mapping[str, Any] = field(default_factory=dict)  # of every cell
    scale: float = 1.0  # the share of the declared steps and seeds that is run

    def scaled(self, scale: float) -> Study:
        """Returns the study with a share of its steps and seeds, at least two of those unless it declares one."""
        if not 0 < scale <= 1:  # and no NaN
            raise UserError(f"--scale must be above 0 and at most 1; found {scale}.")
        seeds = max(min(FEWEST_SEEDS, self.seeds), math.ceil(scale * self.seeds))
        return dataclasses.replace(self, seeds=seeds, steps=max(1, round(scale * self.steps)), scale=scale)

    def only(self, tasks: list[str], algos: list[str]) -> Study:
        """Returns the cells of some tasks and algorithms; an empty list means all."""
        for what, wanted, known in (
            ("task", tasks, {cell.task for cell in self.cells}),
            ("algorithm", algos, {cell.algo for cell in self.cells}),
        ):
            for name in wanted:
                if name not in known:
                    raise unknown_name(f"{what} in the study {self.name}:", name, known)
        kept = [c for c in self.cells if (not tasks or c.task in tasks) and (not algos or c.algo in algos)]
        if not kept:
            raise UserError(f"The study {self.name} has no cell of {', '.join(algos)} on {', '.join(tasks)}.")
        return dataclasses.replace(self, cells=tuple(kept))

    def plan(self, cell: Cell) -> Plan:
        """Returns the settings of a cell's run; of a study that was shrunk it takes at least one iteration."""
        settings = {**self.settings, **cell.settings}
        arguments: dict[str, Any] = {"task": cell.task, "algo": cell.algo, "preset": self.preset, "settings": settings}
        one_iteration = make_plan(**arguments).algo.steps_per_iteration()
        size = {"seeds": self.seeds, "steps": max(self.steps, one_iteration)}
        return make_plan(**arguments, run={**size, "goal": cell.goal, "reward": cell.reward})

    def to_tables(self) -> dict[str, Any]:
        """Returns the study as tables that a TOML file can hold, every cell for itself."""
        own = {"name": self.name, "title": self.title, "scale": self.scale, "seeds": self.seeds, "steps": self.steps}
        if self.preset is not None:
            own["preset"] = self.preset
        if not self.together:
            own["together"] = False
        cells = [{k: v for k, v in dataclasses.asdict(cell).items() if v} for cell in self.cells]
        return {**own, "settings": dict(self.settings), "cells": cells}

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Study:
        """Returns the study that `to_tables` wrote down; raises `TypeError` or `KeyError` if it is none."""
        protocol = Protocol(**{key: tables[key] for key in _PROTOCOL if key in tables})
        cells = tuple(Cell(**cell) for cell in tables["cells"])
        for cell in cells:
            parts = [
                cell.task,
                cell.algo,
                *(name for name in (cell.goal, cell.reward, cell.variant) if name is not None),
            ]
            if not all(isinstance(part, str) for part in parts) or not isinstance(cell.settings, dict):
                raise TypeError("a cell has names that are not text, or settings that are no table")
        if not isinstance(tables["scale"], float) or not all(isinstance(tables[key], str) for key in ("name", "title")):
            raise TypeError("names must be text and the scale a number")
        _check_names(cells, "the study")
        return cls(**{**tables, **dataclasses.asdict(protocol), "cells": cells})


def study_names() -> list[str]:
    """Returns the studies that come with the package."""
    return sorted(path.name.removesuffix(".toml") for path in _declared().iterdir() if path.name.endswith(".toml"))


def load_study(name_or_file: str) -> Study:
    """Returns a study by its name, or from a `.toml` file."""
    if name_or_file.endswith(".toml"):
        path: Any = Path(name_or_file)
        if not path.is_file():
            raise UserError(f"Expected '{name_or_file}' to be the TOML file of a study; there is none at that path.")
    elif name_or_file in study_names():
        path = _declared() / f"{name_or_file}.toml"
    else:
        raise unknown_name("study", name_or_file, study_names())
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"Expected '{name_or_file}' to be readable; {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"The study '{name_or_file}' is not valid TOML; {brief(error)}.") from error
    return parse_study(Path(name_or_file).stem, tables)


def parse_study(name: str, tables: Mapping[str, Any]) -> Study:
    """Returns the study that a file declares; raises if it is not one, or if a cell of it could not be run."""
    where = f"the study {name}"
    known = ["title", *_PROTOCOL, "settings", "groups"]
    for key in tables:
        if key not in known:
            raise unknown_name(f"key in {where}:", key, known)
    groups = tables.get("groups")
    if not isinstance(groups, list) or not groups:
        raise UserError(f"Expected {where} to have tables [[groups]] with tasks and algos; found none.")
    cells = tuple(cell for group in groups for cell in _parse_group(where, group).cells())
    values = {key: tables[key] for key in _PROTOCOL if key in tables}
    protocol = Protocol(**coerce_fields(Protocol, values, where))
    study = Study(
        name=name,
        title=str(tables.get("title", name)),
        cells=cells,
        settings=_settings(where, "settings", tables.get("settings", {})),
        **dataclasses.asdict(protocol),
    )
    _check_names(cells, where)
    for folder, count in Counter(cell.folder for cell in cells).items():
        if count > 1:
            raise UserError(f"Expected every cell of {where} to occur once; found '{folder}' {count} times.")
    for cell in cells:
        _check_cell(study, cell)
    return study


def _check_names(cells: Iterable[Cell], where: str) -> None:
    """Raises if the name of a cell cannot be shown, or cannot be a folder's."""
    for cell in cells:
        if not str(cell).isprintable():
            raise UserError(f"Expected names in {where} that can be printed; found {str(cell)!r}.")
        if max(len(part.encode()) for part in cell.folder.parts) > _LONGEST_NAME:
            raise UserError(f"Expected names in {where} of at most {_LONGEST_NAME} bytes; found {str(cell)[:60]}...")


def _parse_group(where: str, group: Any) -> Group:
    known = [part.name for part in dataclasses.fields(Group)]
    for key in _table(where, "groups", group):
        if key not in known:
            raise unknown_name(f"key in a group of {where}:", key, known)
    variants = _table(where, "variants", group.get("variants", {}))
    if "" in variants:
        raise UserError(f"Expected every variant in {where} to have a name; found an empty one.")
    variants = {name: _settings(where, f"variants.{name}", table) for name, table in variants.items()}
    lists = {key: group.get(key, []) for key in known if key not in ("settings", "variants")}
    for key, names in lists.items():
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise UserError(f"Expected {key} in a group of {where} to be a list of names; found {names!r}.")
        if key in ("tasks", "algos") and not names:
            raise UserError(f"Expected a group of {where} to list {key}; found none.")
    return Group(**lists, settings=_settings(where, "settings", group.get("settings", {})), variants=variants)


def _table(where: str, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"Expected {key} in {where} to be a table; found {value!r}.")
    return value


def _settings(where: str, key: str, value: Any) -> dict[str, Any]:
    """Returns settings as `--set` takes them: what TOML reads as a table within a table has a dot in its name."""
    flat: dict[str, Any] = {}
    for name, setting in _table(where, key, value).items():
        if isinstance(setting, dict):
            flat |= {f"{name}.{inner}": v for inner, v in _settings(where, f"{key}.{name}", setting).items()}
        else:
            flat[name] = setting
    return flat


def _check_cell(study: Study, cell: Cell) -> None:
    task = TASKS.get(cell.task)
    try:
        if task is None and is_registered(cell.task):
            raise unknown_name("task", cell.task, TASKS)
        if task is not None:
            for what, name, known in (("goal", cell.goal, task.goals), ("reward", cell.reward, task.rewards)):
                if name is not None and name not in known:
                    raise unknown_name(f"{what} of {cell.task}:", name, known)
        study.plan(cell)
    except UserError as error:
        raise UserError(f"In the study {study.name}, {cell}: {error}") from error


def _declared() -> Any:
    return resources.files("goalward") / "studies" / "declared"
