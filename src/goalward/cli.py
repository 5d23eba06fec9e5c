"""The command line: thin calls into the package. Heavy imports wait until a command runs.

Exit codes: 0 done; 2 the input is wrong, explained in one or two sentences; 130 interrupted, state saved; 1 otherwise.
The parser is argparse rather than a generated one: every mistake must come out as one sentence, and `--help` must not
wait for the packages that the settings are defined in.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from goalward import __version__
from goalward.errors import GoalwardError, UserError, brief
from goalward.run.interrupts import leave_at_second_signal

if TYPE_CHECKING:  # what a command needs is imported with it: help must not wait for jax
    from goalward.studies.declare import Study
    from goalward.studies.directory import StudyDirectory

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and exits with its code."""
    try:
        options = _parser().parse_args(arguments)
        _quiet_libraries()
        options.run(options)
        sys.stdout.flush()
    except GoalwardError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt as error:
        _complain(str(error) or "Interrupted.")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone, as in `goalward tasks | head -1`; Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def entry() -> NoReturn:
    """Runs one command as a process of its own."""
    leave_at_second_signal(_say_that_it_ends, INTERRUPTED)
    try:
        main()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # Not through Python's own exit: a computation that still runs would crash when JAX is taken down.
            _take_leave()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise


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
                agents = "1 agent" if task.num_agents == 1 else f"{task.num_agents} agents"
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
        cells = "1 cell" if len(outcome.failed) == 1 else f"{len(outcome.failed)} cells"
        raise GoalwardError(f"{cells} failed; the same command tries again.\n{listed}")


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


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Raises the complaint as a user error, which `main` prints."""
        raise UserError(f"{message[:1].upper()}{message[1:]}. See {self.prog} --help.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="goalward",
        description="Trains agents to reach goals without a reward function.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"goalward {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command", parser_class=_Parser)

    def command(name: str, run: Any) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=run.__doc__, description=run.__doc__, allow_abbrev=False)
        sub.set_defaults(run=run)
        return sub

    sub = command("tasks", tasks)
    sub.add_argument("--json", action="store_true", help="print one JSON document")

    _add_train_arguments(command("train", train))

    sub = command("evaluate", evaluate)
    _add_run_arguments(sub)
    sub.add_argument("--episodes", type=_count, help="whole episodes per seed (default: as in training)")
    sub.add_argument("--greedy", action="store_true", help="take the most probable action instead of sampling")
    sub.add_argument("--json", action="store_true", help="print one JSON document")

    sub = command("render", render)
    _add_run_arguments(sub)
    sub.add_argument("--out", type=_path, metavar="FILE.gif", help="where to (default: RUN/media/render.gif)")
    sub.add_argument("--episodes", type=int, default=6, help="how many episodes side by side (default: 6)")
    sub.add_argument("--key", type=int, default=0, help="random key of the episodes (default: 0)")

    sub = command("study", study)
    sub.add_argument("study", metavar="NAME_OR_FILE", help="a study's name or a .toml file")
    sub.add_argument("--scale", type=float, default=1.0, help="the share of the declared steps and seeds (default: 1)")
    sub.add_argument("--tasks", nargs="+", default=[], help="only these tasks of it")
    sub.add_argument("--algos", nargs="+", default=[], help="only these algorithms of it")
    sub.add_argument("--out", type=_path, help="its directory (default: studies/NAME)")
    sub.add_argument("--on", choices=["local", "slurm"], default="local", help="here, or as jobs of Slurm")
    sub.add_argument(
        "--jobs", type=int, help="how many jobs share it (default: one for each program that is left to run)"
    )

    sub = commands.add_parser("study-cells", description=study_cells.__doc__)  # not listed: no user's command
    sub.set_defaults(run=study_cells)
    sub.add_argument("directory", type=_path, metavar="STUDY", help="the study's directory")
    sub.add_argument("folders", nargs="+", metavar="CELL", help="where the cells' runs lie within it")

    sub = command("report", report)
    sub.add_argument("dirs", nargs="+", type=_path, metavar="DIR", help="directories with runs below them")
    sub.add_argument("--out", type=_path, help="where to (default: report/ in the first directory)")

    sub = command("check", check)
    sub.add_argument("env", metavar="module:factory", help="your environment, or a task's name")
    return parser


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", nargs="?", help="a task's name, or module:factory for your own (default: toy/rooms)")
    parser.add_argument("--algo", help="cppo, ppo, csac, icsac or cdqn (default: cppo)")
    parser.add_argument("--seeds", type=int, help="independent runs, trained side by side in one program")
    parser.add_argument("--first-seed", type=int, metavar="K", help="number of the first seed (default: 0)")
    parser.add_argument(
        "--steps",
        type=_count,
        help="environment steps per seed, at least one iteration, rounded up to whole ones",
    )
    parser.add_argument(
        "--preset",
        help="default, quick, paper-literal, tuned, published or a .toml file (default: tuned, published or default)",
    )
    parser.add_argument("--goal", help="one of the task's goals")
    parser.add_argument("--reward", help="one of the task's rewards, for methods that use one")
    parser.add_argument("--out", type=_path, help="directory of the run (default: a new one under runs/)")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="key=value",
        help="any setting, e.g. clip=0.1 env.size=11; the task comes before it",
    )
    parser.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="devices that share the seeds, then the environments (default: as many as divide the seeds)",
    )
    parser.add_argument(
        "--join",
        metavar="HOST:PORT,K,N",
        help="train together with other processes, this one being number K of N and the first at HOST:PORT; or auto",
    )
    parser.add_argument("--resume", type=_path, metavar="RUN", help="go on with a run from its newest checkpoint")


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what every command takes that reads a saved run."""
    parser.add_argument("run_dir", type=_path, metavar="RUN", help="a run's directory")
    parser.add_argument("--env", metavar="module:factory", help="the environment, if it is your own")


def _count(text: str) -> int:
    """Returns a whole number written as 80000000, 80_000_000 or 8e7."""
    number = float(text)
    if not number.is_integer():
        raise ValueError
    return int(number)


def _path(text: str) -> Path:
    """Returns a path; the empty one would mean the current directory."""
    if not text:
        raise ValueError
    return Path(text)


# The words that argparse puts into its complaints.
_path.__name__ = "path"
_count.__name__ = "whole number"


def _say_that_it_ends() -> None:
    _complain("Left at once; a run can go on from its last checkpoint: goalward train --resume RUN")


def _take_leave() -> None:
    """Waits for the other processes of a run, if there are any: one that loses sight of the first is ended."""
    jax = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized():
        jax.distributed.shutdown()


def _complain(text: str) -> None:
    print(f"goalward: {text}", file=sys.stderr)


def _quiet_libraries() -> None:
    """Keeps the log lines of XLA and Orbax out of the output; warnings stay."""
    import logging

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("absl").setLevel(logging.ERROR)


if __name__ == "__main__":
    entry()
