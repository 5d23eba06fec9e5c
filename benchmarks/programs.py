"""What benchmarks of speed share: a task's training program on one device, and where its results are written."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import goalward as gw
from goalward.algos.base import Learner
from goalward.envs.base import GoalEnv
from goalward.envs.tasks import TASKS
from goalward.envs.traced import TracedOnce
from goalward.errors import unknown_name
from goalward.run.config import Plan, make_plan
from goalward.run.directory import write_json
from goalward.run.memory import require_memory
from goalward.run.prepare import prepare
from goalward.run.program import Program

Row = dict[str, Any]


class Setup(NamedTuple):
    """What is measured."""

    plan: Plan
    env: GoalEnv
    learner: Learner
    program: Program


def parser_of(description: str | None, *, out: str) -> argparse.ArgumentParser:
    """Returns a parser that reads which tasks to measure, with what, and the folder for the results."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--algo", default="cppo")
    parser.add_argument("--preset", default="default", help="the paper's scale unless given")
    parser.add_argument("--out", type=Path, default=Path(out))
    return parser


def measure_each(
    options: argparse.Namespace, measure: Callable[[str, argparse.Namespace], Row], said: Callable[[Row], str]
) -> list[Row]:
    """Returns what was measured of each task, written to a file of its own and said when it is there.

    Raises `UserError` before the first for what can be known then.
    """
    check_tasks(options.tasks, algo=options.algo, preset=options.preset, run={"seeds": options.seeds})
    make_folder(options.out)
    rows = []
    for task in options.tasks:
        row = measure(task, options)
        rows.append(row)
        write(row, options)
        print(f"{task}: {said(row)}", file=sys.stderr, flush=True)
    return rows


def in_new_process(measure: Callable[[str, argparse.Namespace], Row], task: str, options: argparse.Namespace) -> Row:
    """Returns what a process of its own measures: one that has compiled and kept nothing before."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        return alone.submit(measure, task, options).result()


def check_tasks(tasks: list[str], **wanted: Any) -> None:
    """Raises `UserError` if there is no such task, or no such plan for it."""
    for task in tasks:
        if task not in TASKS:
            raise unknown_name("task", task, TASKS)
        make_plan(task=task, **wanted)


def make_folder(path: Path) -> None:
    """Makes a folder for results; raises `UserError` where there can be none."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise gw.UserError(f"Expected a folder that can be made and written; {error}.") from error
    if not os.access(path, os.W_OK):
        raise gw.UserError(f"Expected a folder that can be made and written; {path} cannot be written.")


def make_room(path: Path) -> None:
    """Makes the folder of a file of results; raises `UserError` where there can be no such file."""
    make_folder(path.parent)
    if path.is_dir():
        raise gw.UserError(f"Expected --out to be a file; {path} is a folder.")


def set_up(task: str, options: argparse.Namespace) -> Setup:
    """Returns a task's training program on one device; raises `UserError` if that cannot hold what it keeps."""
    prepare(devices=1)
    plan = make_plan(
        task=task,
        algo=options.algo,
        preset=options.preset,
        run={"seeds": options.seeds},
        settings={"precision": options.precision},
    )
    env = gw.make(task, **plan.run.env)
    plan = plan.for_env(env)
    learner = plan.algo.bind(TracedOnce(env), plan.num_iterations)
    program = Program(learner, plan.seed_numbers)
    require_memory(program, num_seeds=plan.run.seeds, num_episodes=plan.run.eval_episodes)
    return Setup(plan, env, learner, program)


def identity(task: str, options: argparse.Namespace) -> Row:
    """Returns what tells a result from others."""
    return {"task": task} | {name: getattr(options, name) for name in ("algo", "seeds", "precision", "preset")}


def write(row: Row, options: argparse.Namespace) -> None:
    """Writes a result to its file."""
    parts = [name_of(row["task"]), *(str(row[name]) for name in ("algo", "seeds", "precision") if name in row)]
    if row["preset"] != "default":
        parts.append(Path(row["preset"]).stem)
    write_json(options.out / f"{'-'.join(parts)}.json", row)


def name_of(task: str) -> str:
    """Returns a task's name as part of a file's."""
    return task.replace("/", "-")
