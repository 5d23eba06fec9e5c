"""Training by name or by object: from what the user asked for to the training loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from goalward.algos.base import AlgorithmConfig, Learner
from goalward.algos.settings import field_types, traced_fields
from goalward.envs.base import EnvSpec, GoalEnv
from goalward.envs.check import check_env
from goalward.envs.registry import make
from goalward.envs.tasks import DEFAULT_TASK
from goalward.envs.traced import TracedOnce
from goalward.errors import UserError
from goalward.run.config import PYTHON_OBJECT, Plan, is_registered, make_plan
from goalward.run.devices import asked_devices, make_mesh, seeds_in_memory, seeds_on_host
from goalward.run.directory import RunDirectory
from goalward.run.loop import Training
from goalward.run.member import Member, Run
from goalward.run.memory import require_memory, require_memory_for_checkpoints, require_memory_for_episodes
from goalward.run.prepare import prepare, prepared
from goalward.run.processes import acquaint, from_first, in_all, is_first, require_same
from goalward.run.program import Program, Programs, configurations_of
from goalward.run.progress import Reporter, Silent, Terminal
from goalward.run.solvers import without_endless_waits


def train(
    task: str | GoalEnv = DEFAULT_TASK,
    algo: str | AlgorithmConfig = "cppo",
    *,
    seeds: int | None = None,
    first_seed: int | None = None,
    steps: int | None = None,
    preset: str | Path | None = None,
    goal: Any = None,
    reward: Any = None,
    out: str | Path | None = None,
    settings: dict[str, Any] | None = None,
    devices: int | None = None,
    join: str | None = None,
    show_progress: bool = False,
) -> Run:
    """Returns the run that trains `algo` on `task`; everything is also in the run's directory.

    Args:
        task: a task's name, `module:factory`, or an environment object.
        algo: an algorithm's name, or its settings as an object, which are then taken as they are.
        seeds: how many independent runs train side by side.
        first_seed: the number of the first of them; the others follow it.
        steps: environment steps per seed, at least one iteration, rounded up to whole ones.
        preset: where the settings start from; None takes the task's own preset if there is one.
        goal: a name or an object; None takes the task's default.
        reward: a name or an object, for methods that use one.
        out: the run's directory; None makes a new one under `runs/`.
        settings: further settings, as `--set` takes them.
        devices: how many devices share the seeds and the environments; None takes as many as the seeds divide among,
            or the one that was made JAX's default.
        join: trains together with other processes that call this alike: `HOST:PORT,K,N`, this one being number K of N
            and the first listening there, or `auto`; see docs/performance.md.
        show_progress: whether to write to the terminal.

    >>> import goalward as gw
    >>> run = gw.train("toy/rooms", preset="quick", out=tmp_path / "run")
    >>> len(run.policies)
    2

    """
    if not isinstance(out, str | os.PathLike | None):
        raise UserError(f"Expected out to be the path of a directory; found {out!r}.")
    plan = make_plan(
        task=task if isinstance(task, str) else PYTHON_OBJECT,
        algo=algo,
        preset=preset,
        run={"seeds": seeds, "first_seed": first_seed, "steps": steps},
        settings=settings,
    )

    def build() -> tuple[GoalEnv, Plan, Learner]:
        parts = _part(plan, "goal", goal), _part(plan, "reward", reward)
        env = _environment(plan, task, *parts)
        whole = plan.for_env(env, *parts)
        return env, whole, whole.algo.bind(TracedOnce(env), whole.num_iterations)

    with prepared(devices, join, _reporter(show_progress).say):
        require_same("train")
        env, plan, learner = in_all(build)
        require_same(f"{plan.to_toml()}\nout {out}\ndevices {asked_devices(devices)}")
        programs = _common_programs(plan, learner, devices, _reporter(show_progress))
        directory = _new_directory(out, plan, env)
        return _run([(directory, plan, learner)], programs, show_progress)[0]


def _new_directory(out: str | Path | None, plan: Plan, env: GoalEnv) -> RunDirectory:
    """Returns the directory that the first process has made."""
    made: RunDirectory | None = None

    def make_it() -> str:
        nonlocal made
        made = RunDirectory.create(out, plan, plan.task_name(env))
        return str(made.path)

    path = from_first(make_it)
    return made or RunDirectory(Path(path))


def train_together(
    wanted: Sequence[tuple[Plan, Path]], *, devices: int | None = None, show_progress: bool = False
) -> list[Run]:
    """Returns runs that train in one program, each in a directory of its own with all that it would hold alone.

    Args:
        wanted: plans, and where their runs lie. They may differ in settings that can be traced and in nothing else.
            Runs that are there already are gone on with; then all must have come equally far.
        devices: how many devices share the seeds of all runs and the environments, as for `train`.
        show_progress: whether to write to the terminal.

    """
    prepare(devices)
    first = wanted[0][0]
    goal, reward = _part(first, "goal", None), _part(first, "reward", None)
    env = TracedOnce(_environment(first, first.run.task, goal, reward))
    found = [RunDirectory(path) for _, path in wanted]
    plans = [
        directory.plan() if directory.config.is_file() else plan.for_env(env, goal, reward)
        for directory, (plan, _) in zip(found, wanted, strict=True)
    ]
    _require_likeness(plans)
    learners = [plan.algo.bind(env, plan.num_iterations) for plan in plans]
    programs = _programs(plans, learners[0], devices, _reporter(show_progress))
    directories = []
    try:
        for directory, plan in zip(found, plans, strict=True):
            is_there = directory.config.is_file()
            directories.append(
                directory if is_there else RunDirectory.create(directory.path, plan, plan.task_name(env))
            )
    except Exception:
        _discard(directories)
        raise
    return _run(list(zip(directories, plans, learners, strict=True)), programs, show_progress)


def _require_likeness(plans: Sequence[Plan]) -> None:
    """Raises if runs differ in more than settings that can be traced."""
    first = plans[0].without_traced()
    for plan in plans:
        other = plan.without_traced()
        if other == first:
            continue
        pairs = [(first.run, other.run), (first.algo, other.algo)]
        names = [name for a, b in pairs for name in field_types(type(a)) if getattr(a, name) != getattr(b, name, None)]
        raise UserError(
            f"Expected runs that train together to differ in {', '.join(sorted(traced_fields(type(first.algo))))} "
            f"alone; found other values of {', '.join(names) or 'env'}. Train them one by one."
        )


def _common_programs(plan: Plan, learner: Learner, devices: int | None, reporter: Reporter) -> Programs:
    """Returns what to train with on devices of all processes, which can exchange arrays from now on."""
    programs = in_all(lambda: _programs([plan], learner, devices, reporter))
    acquaint(programs.together.mesh)
    return programs


def _programs(plans: Sequence[Plan], learner: Learner, devices: int | None, reporter: Reporter) -> Programs:
    """Returns what to train with; raises if the devices cannot hold what the plans ask for.

    Runs are trained and evaluated all at once, and measured one by one at the end.
    """
    plan, env = plans[0], learner.env
    num_seeds = plan.run.seeds
    num_rows = len(plans) * num_seeds
    mesh = without_endless_waits(make_mesh(num_rows, learner.num_envs, devices), env, devices, reporter.say)
    episodes, at_end = plan.run.eval_episodes, plan.run.absolute_factor * plan.run.eval_episodes
    if len(plans) == 1:
        together = alone = Program(learner, plan.seed_numbers, mesh)
        episodes = max(episodes, at_end)
    else:
        configurations = configurations_of([plan.algo for plan in plans], env, plan.num_iterations)
        together = Program(learner, plan.seed_numbers, mesh, configurations)
        alone = Program(learner, plan.seed_numbers)
        require_memory_for_episodes(together, num_seeds, at_end)  # by one device, whatever trains
    require_memory(together, num_seeds=seeds_in_memory(mesh, num_rows), num_episodes=episodes)
    num_written = num_seeds if is_first() else 0
    require_memory_for_checkpoints(together, num_on_host=seeds_on_host(mesh, num_rows), num_written=num_written)
    return Programs(together, alone)


def _part(plan: Plan, name: str, given: Any) -> Any:
    """Returns the goal or the reward: what was given, else what the preset says."""
    saved = getattr(plan.run, name)
    if given is None and saved == PYTHON_OBJECT:
        raise UserError(
            f"The preset '{plan.run.preset}' is of a run whose {name} was an object of your own, which no file holds; "
            f"pass it again as {name}=."
        )
    return saved if given is None else given


def _environment(plan: Plan, task: str | GoalEnv, goal: Any, reward: Any) -> GoalEnv:
    """Returns the environment to train on, checked if the user's own code has a part in it."""
    if isinstance(task, str):
        env = make(task, goal=goal, reward=reward, **plan.run.env)
    elif goal is not None or reward is not None or plan.run.env:
        raise UserError("An environment object has its goal, reward and arguments already; give them when you make it.")
    else:
        env = task
        if isinstance(task, type):
            raise UserError(f"Expected an environment; found the class {task.__name__}. Pass an object of it.")
    if not is_registered(plan.run.task) or not all(isinstance(part, str | None) for part in (goal, reward)):
        check_env(env)
    return env


def _reporter(show_progress: bool) -> Reporter:
    return Terminal() if show_progress else Silent()


def _run(wanted: Sequence[tuple[RunDirectory, Plan, Learner]], programs: Programs, show_progress: bool) -> list[Run]:
    """Returns the runs at their end; no other process can write their directories meanwhile."""
    with ExitStack() as held:
        try:
            from_first(lambda: [held.enter_context(directory.locked()) for directory, _, _ in wanted])
            members = [Member(*parts) for parts in wanted]
            return Training(members, programs, _reporter(show_progress and is_first())).run()
        except Exception:
            _discard([directory for directory, _, _ in wanted])
            raise


def _discard(directories: Sequence[RunDirectory]) -> None:
    """Takes back what was written of new runs that have come to nothing."""
    for directory in directories:
        directory.discard_unless_begun()


def resume(
    path: str | Path,
    *,
    env: GoalEnv | str | None = None,
    algo: AlgorithmConfig | None = None,
    devices: int | None = None,
    join: str | None = None,
    show_progress: bool = False,
) -> Run:
    """Returns a run that goes on from its newest checkpoint, exactly as if it had not been stopped.

    On another number of devices it makes the same draws, and rounds differently.

    Args:
        path: the run's directory.
        env: the environment, if it is not a task that goalward knows by name; it is never taken from the directory.
        algo: the settings with the modules, if the run was started with modules of your own.
        devices: how many devices share the seeds and the environments, as for `train`.
        join: goes on together with other processes, as for `train`; only the first has to see the directory.
        show_progress: whether to write to the terminal.

    """
    with prepared(devices, join, _reporter(show_progress).say):
        require_same("resume")
        plan = Plan.from_toml(from_first(lambda: RunDirectory.open(path).plan().to_toml()))
        directory = RunDirectory(Path(path))

        def build() -> Learner:
            return settings_of(plan, algo).bind(TracedOnce(environment_of(plan, env)), plan.num_iterations)

        learner = in_all(build)
        require_same(f"resume {path}\ndevices {asked_devices(devices)}")
        programs = _common_programs(plan, learner, devices, _reporter(show_progress))
        return _run([(directory, plan, learner)], programs, show_progress)[0]


def settings_of(plan: Plan, given: AlgorithmConfig | None) -> AlgorithmConfig:
    """Returns the settings of a saved run; only modules, which no file holds, are taken from `given`."""
    kind = type(plan.algo)
    if not isinstance(given, kind | None):
        raise UserError(
            f"Expected algo to be settings with networks, goalward.{kind.__name__}(...); found {type(given).__name__}."
        )
    if plan.run.own_modules and (given is None or not given.has_modules):
        raise UserError("The run was trained with networks of your own, which no file holds; pass them again as algo=.")
    return plan.algo if given is None else plan.algo.with_modules_of(given)


def environment_of(plan: Plan, given: GoalEnv | str | None = None) -> GoalEnv:
    """Returns the environment of a saved run; code that a run directory names is imported only if asked for."""
    if not isinstance(given, str | None):
        if not isinstance(getattr(given, "spec", None), EnvSpec):
            raise UserError(f"Expected env to be an environment, with a goalward.EnvSpec as `spec`; found {given!r}.")
        return given
    task = plan.run.task
    objects = [part for part in ("task", "goal", "reward") if getattr(plan.run, part) == PYTHON_OBJECT]
    if objects:
        raise UserError(
            f"The {' and the '.join(objects)} of the run came as an object of your own, which no file holds; "
            "make the environment again and pass the object as env=."
        )
    if given is None and not is_registered(task):
        raise UserError(
            "The run was trained on an environment of your own, which is not loaded unasked; "
            f"give its name again: {task} (--env {task}, in Python env=)."
        )
    if given not in (None, task):
        raise UserError(f"The run was trained on '{task}'; found '{given}'. Give that name or none.")
    return make(task, goal=plan.run.goal, reward=plan.run.reward, **plan.run.env)
