"""The command line: what may be said, and how a command ends. What the commands do is in `commands`.

Exit codes: 0 done; 2 the input is wrong, explained in one or two sentences; 130 interrupted, state saved; 1 otherwise.
The parser is argparse rather than a generated one: every mistake must come out as one sentence, and `--help` must not
wait for the packages that the settings are defined in.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from goalward import __version__, commands
from goalward.errors import GoalwardError, PartnerLost, UserError, brief
from goalward.run.interrupts import disregard_interrupts, leave_at_second_signal, raise_interrupts

INTERRUPTED = 130
_SECONDS_TO_TAKE_LEAVE = 10.0  # after a failure
_SECONDS_FOR_OTHERS = 2.0  # to notice that one is gone, before the first follows it


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and exits with its code."""
    try:
        options = _parser().parse_args(arguments)
        _quiet_libraries()
        if options.run is not commands.tasks:  # the one command that does without
            _import_jax()
        options.run(options)
        sys.stdout.flush()
    except GoalwardError as error:
        _complain(str(error))
        raise SystemExit(error.exit_code) from error
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
    raise_interrupts()  # also in a shell's background jobs, which are started without Ctrl-C
    try:
        main()
    except BaseException as end:
        disregard_interrupts()  # processes that part must not be cut short
        code = _exit_code(end)
        if code == INTERRUPTED or (code != 0 and _is_joined()):
            # Not through Python's own exit: a computation that still runs would crash when JAX is taken down, and JAX
            # would wait for minutes where this process alone has failed, or another is gone.
            _say_what_python_would(end, code)
            if _is_joined():
                _part(code, is_left_alone=isinstance(end.__cause__, PartnerLost))
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it was closed
                    stream.flush()
            os._exit(code)
        raise


def _exit_code(end: BaseException) -> int:
    if isinstance(end, KeyboardInterrupt):  # while `main` spoke of another error
        return INTERRUPTED
    if isinstance(end, SystemExit) and (end.code is None or isinstance(end.code, int)):
        return end.code or 0
    return 1


def _say_what_python_would(end: BaseException, code: int) -> None:
    """Prints an error or the text of `sys.exit`; everything else has been said."""
    if isinstance(end, SystemExit):
        if not isinstance(end.code, int | None):
            with contextlib.suppress(OSError, ValueError):  # nobody listens
                print(end.code, file=sys.stderr)
    elif code == 1:
        sys.excepthook(type(end), end, end.__traceback__)


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
    choices = parser.add_subparsers(required=True, metavar="command", parser_class=_Parser)

    def command(name: str, run: Any) -> argparse.ArgumentParser:
        sub = choices.add_parser(name, help=run.__doc__, description=run.__doc__, allow_abbrev=False)
        sub.set_defaults(run=run)
        return sub

    sub = command("tasks", commands.tasks)
    sub.add_argument("--json", action="store_true", help="print one JSON document")

    _add_train_arguments(command("train", commands.train))

    sub = command("evaluate", commands.evaluate)
    _add_run_arguments(sub)
    sub.add_argument("--episodes", type=_count, help="whole episodes per seed (default: as in training)")
    sub.add_argument("--greedy", action="store_true", help="take the most probable action instead of sampling")
    sub.add_argument("--json", action="store_true", help="print one JSON document")

    sub = command("render", commands.render)
    _add_run_arguments(sub)
    sub.add_argument("--out", type=_path, metavar="FILE.gif", help="where to (default: RUN/media/render.gif)")
    sub.add_argument("--episodes", type=int, default=6, help="how many episodes side by side (default: 6)")
    sub.add_argument("--key", type=int, default=0, help="random key of the episodes (default: 0)")

    sub = command("study", commands.study)
    sub.add_argument("study", metavar="NAME_OR_FILE", help="a study's name or a .toml file")
    sub.add_argument("--scale", type=float, default=1.0, help="the share of the declared steps and seeds (default: 1)")
    sub.add_argument("--tasks", nargs="+", default=[], help="only these tasks of it")
    sub.add_argument("--algos", nargs="+", default=[], help="only these algorithms of it")
    sub.add_argument("--out", type=_path, help="its directory (default: studies/NAME)")
    sub.add_argument("--on", choices=["local", "slurm"], default="local", help="here, or as jobs of Slurm")
    sub.add_argument(
        "--jobs", type=int, help="how many jobs share it (default: one for each program that is left to run)"
    )

    sub = choices.add_parser("study-cells", description=commands.study_cells.__doc__)  # not listed: no user's command
    sub.set_defaults(run=commands.study_cells)
    sub.add_argument("directory", type=_path, metavar="STUDY", help="the study's directory")
    sub.add_argument("folders", nargs="+", metavar="CELL", help="where the cells' runs lie within it")

    sub = command("report", commands.report)
    sub.add_argument("dirs", nargs="+", type=_path, metavar="DIR", help="directories with runs below them")
    sub.add_argument("--out", type=_path, help="where to (default: report/ in the first directory)")

    sub = command("check", commands.check)
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


def _is_joined() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _part(code: int, *, is_left_alone: bool) -> None:
    """Lets the other processes of a run say why they end: JAX ends those that lose sight of the first."""
    from jax import distributed, process_index

    if is_left_alone:
        if process_index() == 0:
            time.sleep(_SECONDS_FOR_OTHERS)
        return

    def take_leave() -> None:
        with contextlib.suppress(Exception):  # one is gone meanwhile
            distributed.shutdown()

    leaving = threading.Thread(target=take_leave, name="leave", daemon=True)
    leaving.start()
    # All are interrupted together; it may be this process alone that has failed.
    leaving.join(None if code == INTERRUPTED else _SECONDS_TO_TAKE_LEAVE)


def _complain(text: str) -> None:
    print(f"goalward: {text}", file=sys.stderr)


def _quiet_libraries() -> None:
    """Keeps the log lines of XLA and Orbax out of the output; warnings stay."""
    import logging

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("absl").setLevel(logging.ERROR)


def _import_jax() -> None:
    """Imports JAX, which reads its variables of the environment on the way."""
    try:
        import jax  # noqa: F401
    except ValueError as error:
        raise UserError(f"JAX does not take a variable of the environment; {brief(error)}.") from error


if __name__ == "__main__":
    entry()
