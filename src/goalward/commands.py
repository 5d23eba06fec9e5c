"""The commands: thin calls into the package, each with the options that `cli` has parsed.

What a command needs is imported with it: `goalward --help` must not wait for JAX.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from goalward.errors import GoalwardError, UserError, brief, counted

if TYPE_CHECKING:
    from goalward.studies.declare import Study
    from goalward.studies.directory import StudyDirectory


def tasks(options: argparse.Namespace) -> None:
    """Lists every task."""
    from goalward.envs.tasks import DEFAULT_TASK, TASKS

    rows = [
        {
            "name": task.name,
            "suite": task.suite,
            "agents": task.num_agents,
            "actions": task.actions,
            "goals": list(task.goals),
            "rewards": list(task.rewards),
            "installed": task.is_installed,
            "extra": task.extra,
            "summary": task.summary,
            "default": task.name == DEFAULT_TASK,
        }
        for task in TASKS.values()
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    for line in _task_lines(shutil.get_terminal_size().columns):
        print(line)


def _task_lines(width: int) -> Iterator[str]:
    """Returns the list of tasks, those that share goals and rewards together; only prose is ever folded."""
    from goalward.envs.tasks import TASKS, Task

    suites: dict[str, dict[tuple[tuple[str, ...], tuple[str, ...]], list[Task]]] = {}
    for task in TASKS.values():
        groups = suites.setdefault(task.suite, {})
        groups.setdefault((tuple(task.goals), tuple(task.rewards)), []).append(task)

    def fold(head: str, text: str) -> list[str]:
        return textwrap.wrap(
            head + text, width, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
        )

    yield "Of goals and rewards the first is the default."
    for suite, groups in suites.items():
        members = [task for group in groups.values() for task in group]
        missing = "" if members[0].is_installed else f" (not installed: pip install 'goalward[{members[0].extra}]')"
        yield f"\n{suite}{missing}"
        longest = max(len(task.name) for task in members)
        for (goals, rewards), group in groups.items():
            for task in group:
                agents = counted(task.num_agents, "agent")
                yield from fold(f"  {task.name:{longest}}  {agents:9}  {task.actions:10}  ", task.summary)
            yield from fold("      goals: ", ", ".join(goals))
            yield from fold("      rewards: ", ", ".join(rewards))


def train(options: argparse.Namespace) -> None:
    """Trains, or goes on with a run."""
    from goalward.envs.tasks import DEFAULT_TASK
    from goalward.run.config import parse_setting
    from goalward.run.train import resume, train

    given = {
        name: getattr(options, name)
        for name in ("algo", "seeds", "first_seed", "steps", "preset", "goal", "reward", "out")
        if getattr(options, name) is not None
    }
    if options.resume is not None:
        if given or options.set:
            names = [f"--{name.replace('_', '-')}" for name in [*given, *(["set"] if options.set else [])]]
            raise UserError(
                f"--resume goes on with a run as it was started, so {', '.join(names)} cannot be given with it."
            )
        resume(options.resume, env=options.task, devices=options.devices, join=options.join, show_progress=True)
        return
    settings = dict(parse_setting(text) for text in options.set)
    task = DEFAULT_TASK if options.task is None else options.task
    train(task, settings=settings, devices=options.devices, join=options.join, show_progress=True, **given)


def evaluate(options: argparse.Namespace) -> None:
    """Evaluates the newest policies of a run."""
    from goalward.run.load import evaluate_run

    result = evaluate_run(options.run_dir, episodes=options.episodes, greedy=options.greedy, env=options.env)
    if options.json:
        print(json.dumps(result))
        return
    how = "greedy" if result["greedy"] else "sampled"
    per_seed = " ".join(f"{rate:.3f}" for rate in result["win_rate_per_seed"])
    print(
        f"{result['task']} with {result['algo']} after {result['step']:,} steps, {how} actions, "
        f"{result['episodes']:,} episodes per seed: win rate {result['win_rate']:.3f} (per seed {per_seed})"
    )


def render(options: argparse.Namespace) -> None:
    """Writes an animation of a trained policy."""
    import jax

    from goalward.envs.base import can_render
    from goalward.run.load import load_all
    from goalward.run.media import save_episodes
    from goalward.run.memory import memory_explained

    if options.episodes < 1:
        raise UserError(f"--episodes must be at least 1; found {options.episodes}.")
    if not 0 <= options.key < 2**32:
        raise UserError(f"--key must be between 0 and 2^32 - 1; found {options.key}.")
    out = options.out or options.run_dir / "media" / "render.gif"
    if out.suffix != ".gif":
        raise UserError(f"Expected --out to name a .gif file; found '{out}'.")
    env, policies = load_all(options.run_dir, env=options.env)
    if not can_render(env):
        raise UserError("The environment of this run has no `render(state)`, so there is nothing to show.")
    try:
        with memory_explained():
            save_episodes(out, env, policies[0], jax.random.key(options.key), options.episodes)
    except GoalwardError:
        raise
    except OSError as error:
        raise UserError(f"Expected '{out}' to be writable; {error.strerror or error}.") from error
    except Exception as error:  # whatever a user's `render` raises
        raise UserError(f"The picture could not be made; {brief(error)}.") from error
    print(out)


def check(options: argparse.Namespace) -> None:
    """Checks an environment against the contract."""
    from goalward.envs.check import find_problems
    from goalward.envs.registry import make
    from goalward.run.prepare import prepare

    prepare()
    problems = find_problems(make(options.env))
    if problems:
        raise UserError("\n".join(problems))
    print(f"{options.env} keeps the contract.")


def study(options: argparse.Namespace) -> None:
    """Runs a declared matrix of runs; finished cells are skipped, interrupted ones gone on with."""
    from goalward.run.prepare import check_variables
    from goalward.studies.conduct import StudyInterrupted, conduct, require_packages
    from goalward.studies.declare import load_study
    from goalward.studies.directory import StudyDirectory
    from goalward.studies.progress import StudyTerminal

    check_variables()  # once here, and not by every run
    whole = load_study(options.study).scaled(options.scale)
    part = whole.only(options.tasks, options.algos)
    require_packages(part)
    out = options.out or Path("studies", whole.name)
    directory = StudyDirectory.create(out, whole)
    if options.on == "slurm":
        _study_on_slurm(options, whole, part, directory)
        return
    terminal = StudyTerminal()
    try:
        outcome = conduct(whole, directory, part.cells, terminal)
    except StudyInterrupted:
        again = shlex.join(["goalward", *(sys.argv[1:])])
        raise KeyboardInterrupt(f"Stopped; what has run is saved in {out}. Go on with: {again}") from None
    terminal.say(f"{len(outcome.finished)} of {len(part.cells)} cells are finished: {out}")
    if outcome.failed:
        listed = "\n".join(f"- {failure.cell}: {failure.reason}" for failure in outcome.failed)
        raise GoalwardError(f"{counted(len(outcome.failed), 'cell')} failed; the same command tries again.\n{listed}")


def _study_on_slurm(options: argparse.Namespace, whole: Study, part: Study, directory: StudyDirectory) -> None:
    from goalward.studies.batches import batches
    from goalward.studies.slurm import submit

    cells = [cell for cell in part.cells if not directory.is_finished(cell)]
    if not cells:
        print(f"All {len(part.cells)} cells are finished: {directory.path}")
        return
    arguments = [options.study, f"--scale={options.scale}", f"--out={directory.path}"]
    for name, values in (("--tasks", options.tasks), ("--algos", options.algos)):
        arguments += [name, *values] if values else []
    num_jobs = len(list(batches(whole, directory, cells))) if options.jobs is None else options.jobs
    jobs = submit(whole, directory, arguments, num_jobs)
    print(f"{len(cells)} of {len(part.cells)} cells are left to {len(jobs)} jobs: {', '.join(jobs)}")


def study_cells(options: argparse.Namespace) -> None:
    """Trains cells of a study in one program; `goalward study` calls it."""
    from goalward.studies.batches import train_cells
    from goalward.studies.directory import StudyDirectory

    train_cells(StudyDirectory(options.directory), options.folders)


def report(options: argparse.Namespace) -> None:
    """Writes statistics, figures and one HTML page over any set of runs."""
    try:
        from goalward.report.page import write_report
    except ModuleNotFoundError as error:
        raise UserError(f"A report needs {error.name}: pip install 'goalward[report]'.") from error
    from goalward.report.collect import collect

    print(write_report(collect(options.dirs), options.out or options.dirs[0] / "report"))
