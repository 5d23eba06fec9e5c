"""Environments by name. A suite is imported only when one of its tasks is made."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goalward.envs.imports import on_cpu
from goalward.envs.tasks import TASKS, Task
from goalward.errors import UserError, brief, plain_number, unknown_name
from goalward.garbage import without_looking_for_garbage

if TYPE_CHECKING:
    from goalward.envs.base import GoalEnv
    from goalward.goals.base import Goal
    from goalward.rewards.base import Reward

_one_suite_at_a_time = threading.RLock()  # suites import each other's packages, in circles that threads run into


def make(
    task: str,
    *,
    goal: str | Goal | None = None,
    reward: str | Reward | None = None,
    **arguments: Any,
) -> GoalEnv:
    """Returns the environment of a task.

    Args:
        task: a name that `goalward tasks` lists, or `module:factory` for an environment of your own.
        goal: the name of one of the task's goals, or a `Goal` object; None takes the default.
        reward: the name of one of the task's rewards, or a `Reward` object; None takes the default.
        **arguments: passed to the environment's constructor, for example `size=11`.

    >>> import goalward as gw
    >>> gw.make("toy/routing", goal="distance").spec.goal_dim
    1

    """
    if not isinstance(task, str):
        raise UserError(f"Expected the name of a task or module:factory; found {task!r}.")
    if ":" in task:
        return _make_from_reference(task, goal=goal, reward=reward, arguments=arguments)
    if task not in TASKS:
        raise unknown_name("task", task, TASKS)
    entry = TASKS[task]
    if not entry.is_installed:
        raise UserError(
            f"Task '{task}' needs the package {entry.package}, which is not installed. "
            f"Install it with: pip install 'goalward[{entry.extra}]'"
        )
    merged = {**entry.arguments, **arguments}
    merged = {name: plain_number(value) for name, value in merged.items()}
    merged["goal"] = _part(f"goal of {task}", goal, entry.goals)
    merged["reward"] = _part(f"reward of {task}", reward, entry.rewards)
    with on_cpu(), without_looking_for_garbage():
        return _construct(task, _load_suite(task, entry), merged)


def _load_suite(task: str, entry: Task) -> Any:
    """Returns what builds a task's environment; raises `UserError` if its package is there but cannot be imported."""
    try:
        return _load(entry.constructor)
    except (Exception, SystemExit) as error:  # whatever a package raises while it is imported
        if entry.package is None:
            raise
        raise UserError(
            f"Task '{task}' needs the package {entry.package}, which is installed but could not be imported; it raised "
            f"{brief(error)}. Install it anew with: pip install --force-reinstall 'goalward[{entry.extra}]'"
        ) from error


def _part(what: str, chosen: Any, known: Mapping[str, str]) -> Callable[[Any], Any]:
    """Returns a function from an environment to its goal or reward."""
    if chosen is None or isinstance(chosen, str):
        name = next(iter(known)) if chosen is None else chosen
        if name not in known:
            raise unknown_name(f"{what}:", name, known)
        factory: Callable[[Any], Any] = _load(known[name])
        return factory
    needed = ("name", "dim", "achieved", "target") if what.startswith("goal") else ("name", "__call__")
    missing = [attribute for attribute in needed if not hasattr(chosen, attribute)]
    if isinstance(chosen, type) or missing:
        found = f"the class {chosen.__name__}; pass an object of it" if isinstance(chosen, type) else repr(chosen)
        raise UserError(f"Expected the {what} to be a name or an object with {', '.join(needed)}; found {found}.")
    return lambda env: chosen


def _make_from_reference(reference: str, *, goal: Any, reward: Any, arguments: dict[str, Any]) -> GoalEnv:
    module_name, _, attribute = reference.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a user's module raises while it is imported
        raise UserError(
            f"Expected '{reference}' to name an importable module and a factory in it; importing '{module_name}' "
            f"failed with {brief(error)}."
        ) from error
    factory = getattr(module, attribute, None)
    if factory is None:
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise unknown_name(f"factory in module '{module_name}':", attribute, public)
    if not callable(factory):
        raise UserError(
            f"Expected '{reference}' to name a function or a class that makes an environment; "
            f"found {type(factory).__name__}."
        )
    for name, value in (("goal", goal), ("reward", reward)):
        if value is not None:
            arguments[name] = value
    return _construct(reference, factory, {name: plain_number(value) for name, value in arguments.items()})


def _construct(task: str, factory: Callable[..., Any], arguments: dict[str, Any]) -> GoalEnv:
    _check_names(task, factory, arguments)
    try:
        env: GoalEnv = factory(**arguments)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's factory raises
        raise UserError(
            f"The environment of '{task}' could not be built with the arguments {sorted(arguments)}; it raised "
            f"{brief(error)}."
        ) from error
    return env


def _check_names(task: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises `UserError` for an argument that the factory does not take."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # functions written in C need not tell
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for name in arguments:
        if name not in names:
            listed = ", ".join(sorted(names - {"goal", "reward"})) or "none"
            raise UserError(f"The environment of '{task}' takes no argument '{name}'. It takes: {listed}.")


def _load(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    with _one_suite_at_a_time:
        return getattr(importlib.import_module(module), attribute)
