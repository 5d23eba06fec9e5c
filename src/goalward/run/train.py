"""Training by name or by object: from what the user asked for to the training loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from goalward.algos.base import AlgorithmConfig
from goalward.envs.base import GoalEnv
from goalward.envs.check import check_env
from goalward.envs.registry import make
from goalward.envs.tasks import DEFAULT_TASK
from goalward.errors import UserError
from goalward.run.config import PYTHON_OBJECT, Plan, is_registered, make_plan
from goalward.run.directory import RunDirectory
from goalward.run.loop import Run, Training
from goalward.run.progress import Silent, Terminal


def train(
    task: str | GoalEnv = DEFAULT_TASK,
    algo: str | AlgorithmConfig = "cppo",
    *,
    seeds: int | None = None,
    first_seed: int | None = None,
    steps: int | None = None,
    preset: str | None = None,
    goal: Any = None,
    reward: Any = None,
    out: str | Path | None = None,
    settings: dict[str, Any] | None = None,
    show_progress: bool = False,
) -> Run:
    """Returns the run that trains `algo` on `task`; everything is also in the run's directory.

    Args:
        task: a task's name, `module:factory`, or an environment object.
        algo: an algorithm's name, or its settings as an object, which are then taken as they are.
        seeds: how many independent runs, numbered from `first_seed`, train side by side.
        first_seed: the first seed.
        steps: environment steps per seed, rounded up to whole iterations.
        preset: where the settings start from; None takes the task's own preset if there is one.
        goal: a name or an object; None takes the task's default.
        reward: a name or an object, for methods that use one.
        out: the run's directory; None makes a new one under `runs/`.
        settings: further settings, as `--set` takes them.
        show_progress: whether to write to the terminal.

    >>> import goalward as gw
    >>> run = gw.train("toy/rooms", preset="quick", out=tmp_path / "run")
    >>> len(run.policies)
    2

    """
    plan = make_plan(
        task=task if isinstance(task, str) else PYTHON_OBJECT,
        algo=algo,
        preset=preset,
        run={"seeds": seeds, "first_seed": first_seed, "steps": steps},
        settings=settings,
    )
    goal, reward = goal or plan.run.goal, reward or plan.run.reward
    if isinstance(task, str):
        env = make(task, goal=goal, reward=reward, **plan.run.env)
    elif goal or reward or plan.run.env:
        raise UserError("An environment object has its goal, reward and arguments already; give them when you make it.")
    else:
        env = task
    if not is_registered(plan.run.task) or not all(part is None or isinstance(part, str) for part in (goal, reward)):
        check_env(env)
    plan = plan.for_env(env, goal, reward)
    learner = plan.algo.bind(env, plan.num_iterations)
    jax.eval_shape(learner.init, jax.random.key(0))  # what does not fit together fails here, before anything is written
    directory = RunDirectory.create(out, plan)
    with directory.locked():
        return Training(directory, plan, env, learner, Terminal() if show_progress else Silent()).run()


def resume(
    path: str | Path,
    *,
    env: GoalEnv | str | None = None,
    algo: AlgorithmConfig | None = None,
    show_progress: bool = False,
) -> Run:
    """Returns a run that goes on from its newest checkpoint, exactly as if it had not been stopped.

    Args:
        path: the run's directory.
        env: the environment, if it is not a task that goalward knows by name; it is never taken from the directory.
        algo: the settings with the modules, if the run was started with modules of your own.
        show_progress: whether to write to the terminal.

    """
    directory = RunDirectory.open(path)
    plan = directory.plan()
    env = environment_of(plan, env)
    learner = settings_of(plan, algo).bind(env, plan.num_iterations)
    with directory.locked():
        return Training(directory, plan, env, learner, Terminal() if show_progress else Silent()).run()


def settings_of(plan: Plan, given: AlgorithmConfig | None) -> AlgorithmConfig:
    """Returns the settings of a saved run; only modules, which no file holds, are taken from `given`."""
    if given is not None:
        return plan.algo.with_modules_of(given)
    if plan.run.own_modules:
        raise UserError("The run was trained with networks of your own, which no file holds; pass them again as algo=.")
    return plan.algo


def environment_of(plan: Plan, given: GoalEnv | str | None = None) -> GoalEnv:
    """Returns the environment of a saved run; code that a run directory names is imported only if asked for."""
    task = plan.run.task
    own = not is_registered(task) or PYTHON_OBJECT in (plan.run.goal, plan.run.reward)
    if isinstance(given, str) and given != task:
        raise UserError(f"The run was trained on '{task}'; found '{given}'. Give that name or none.")
    if given is None and own:
        how = f"give its name again: {task}" if ":" in task else "pass the object as env="
        raise UserError(f"The run was trained on an environment of your own, which is not loaded unasked; {how}.")
    if given is not None and not isinstance(given, str):
        return given
    return make(task, goal=plan.run.goal, reward=plan.run.reward, **plan.run.env)
