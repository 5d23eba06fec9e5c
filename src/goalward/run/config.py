"""The settings of a run: where they come from, how they are checked, and how they are saved.

Later sources win: defaults, then the preset, then the command line or the arguments of `goalward.train`.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from goalward.algos.base import ALGORITHMS, AlgorithmConfig, algorithm_class
from goalward.algos.settings import Count, CountOrZero, Share, check_fields, coerce_fields, field_types
from goalward.envs.base import GoalEnv
from goalward.errors import UserError, brief, plain_number, unknown_name

MAX_GRADIENT_STEPS = 2**31 - 1  # what the counters of the optimisers can hold

# Stands for an environment, a goal or a reward that is an object of the caller's, which no name can bring back.
PYTHON_OBJECT = "python"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What is trained, for how long, and how it is evaluated; the defaults are the paper's protocol."""

    task: str  # a task's name, `module:factory`, or "python" for an object
    algo: str  # an algorithm's name
    preset: str = "default"  # where the settings started from
    goal: str | None = None  # None: the task's default
    reward: str | None = None  # None: the task's default
    seeds: Count = 10  # independent runs, all in one program
    first_seed: CountOrZero = 0
    steps: Count = 80_000_000  # environment steps per seed, at least one iteration, rounded up to whole ones
    num_evaluations: Count = 80  # evenly spaced, besides the one before training
    eval_episodes: Count = 2048  # whole episodes per evaluation and seed
    absolute_factor: CountOrZero = 10  # the best policy is evaluated on this many times the episodes at the end; 0: not
    keep_checkpoints: Count = 2
    checkpoint_share: Share = 0.02  # of the time; an evaluation has no checkpoint while they take more; 1: all do
    own_modules: bool = False  # whether networks were passed as modules, which no file can hold
    render_episodes: CountOrZero = 6  # episodes in the picture that is made at the end; 0: none
    # Arguments of the environment's constructor; a table of its own in a file.
    env: dict[str, Any] = field(default_factory=dict, metadata={"python_only": True})

    def __post_init__(self) -> None:
        check_fields(self)
        if self.first_seed + self.seeds > 2**32:
            raise UserError(f"first_seed + seeds must not exceed 2^32; found {self.first_seed} + {self.seeds}.")
        for key in ("task", "goal", "reward"):
            if key in self.env:
                raise UserError(
                    f"'{key}' is no argument of an environment; the task, the goal and the reward have their own."
                )


@dataclass(frozen=True)
class Plan:
    """The resolved settings of one run."""

    run: RunConfig
    algo: AlgorithmConfig

    @property
    def num_iterations(self) -> int:
        """Iterations that cover the steps asked for."""
        return math.ceil(self.run.steps / self.algo.steps_per_iteration())

    @property
    def total_steps(self) -> int:
        """Environment steps per seed that will be taken."""
        return self.num_iterations * self.algo.steps_per_iteration()

    @property
    def seed_numbers(self) -> range:
        """The seeds that are trained."""
        return range(self.run.first_seed, self.run.first_seed + self.run.seeds)

    def check_steps(self) -> None:
        """Raises if not even one iteration was asked for, or more than can be counted."""
        one = self.algo.steps_per_iteration()
        if self.run.steps < one:
            raise UserError(
                f"steps must cover at least one iteration, which is {one:,} environment steps; "
                f"found {self.run.steps:,}."
            )
        gradient_steps = self.algo.gradient_steps_per_iteration()
        if gradient_steps > MAX_GRADIENT_STEPS:
            raise UserError(
                f"One iteration must take at most {MAX_GRADIENT_STEPS:,} gradient steps, which is what optimisers can "
                f"count; found {gradient_steps:,}. Lower num_epochs or replay_ratio, or raise batch_size."
            )
        most = MAX_GRADIENT_STEPS // gradient_steps * one
        if self.run.steps > most:
            raise UserError(
                f"steps must be at most {most:,}, since optimisers count {MAX_GRADIENT_STEPS:,} gradient steps and "
                f"no more; found {self.run.steps:,}."
            )

    def for_env(self, env: GoalEnv, goal: Any = None, reward: Any = None) -> Plan:
        """Returns the plan with all that the environment decides filled in.

        A registered task names its goal and reward; for an environment of the user's own the names that its factory
        was called with are kept, so that it can be made again.
        """
        if is_registered(self.run.task):
            goal, reward = goal or env.spec.goal_name, reward or env.spec.reward_name
        names = (name if name is None or isinstance(name, str) else PYTHON_OBJECT for name in (goal, reward))
        goal, reward = names
        algo = self.algo.resolve(env.spec)
        return Plan(dataclasses.replace(self.run, goal=goal, reward=reward, own_modules=algo.has_modules), algo)

    def task_name(self, env: GoalEnv) -> str:
        """Returns the name that results are filed under: `smax/3m`, `toy/rooms,size=11`, `module:factory`.

        Arguments make another task, whether or not the environment says so in its name.
        """
        return self.with_arguments(self.run.task if ":" in self.run.task else env.spec.name)

    def with_arguments(self, name: str) -> str:
        """Returns a task's name with the arguments that its environment was given."""
        return ",".join([name, *(f"{key}={value}".replace("/", "-") for key, value in sorted(self.run.env.items()))])

    @property
    def is_reproducible(self) -> bool:
        """Whether the text alone brings the run back: no object or module of the caller's takes part."""
        return PYTHON_OBJECT not in (self.run.task, self.run.goal, self.run.reward) and not self.run.own_modules

    def without_traced(self) -> Plan:
        """Returns what runs must have in common to train in one program, for comparison alone."""
        return Plan(self.run, self.algo.without_traced())

    def to_toml(self) -> str:
        """Returns the plan as text that `from_toml` reads."""
        run = {k: v for k, v in dataclasses.asdict(self.run).items() if v is not None and k != "env"}
        algo = {name: getattr(self.algo, name) for name in field_types(type(self.algo))}
        algo = {name: value for name, value in algo.items() if value is not None}
        tables = {"run": run, "env": self.run.env, self.algo.name: algo}
        return tomli_w.dumps({name: table for name, table in tables.items() if table})

    @classmethod
    def from_toml(cls, text: str) -> Plan:
        """Returns the plan that `to_toml` wrote."""
        tables = tomllib.loads(text)
        _check_tables(tables, "config.toml")
        run = coerce_fields(RunConfig, tables.get("run", {}), "config.toml")
        for name in ("task", "algo"):
            if name not in run:
                raise UserError(f"Expected a table `run` with `{name}` in config.toml; found none.")
        config = RunConfig(**run, env=tables.get("env", {}))
        settings = algorithm_class(config.algo)
        return cls(config, settings(**coerce_fields(settings, tables.get(config.algo, {}), "config.toml")))


def is_registered(task: str) -> bool:
    """Returns whether a task is one that goalward knows by name, and not the user's own."""
    return ":" not in task and task != PYTHON_OBJECT


def make_plan(
    *,
    task: str,
    algo: str | AlgorithmConfig = "cppo",
    preset: str | Path | None = None,
    run: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Plan:
    """Returns the settings of a run from all their sources, checked.

    Args:
        task: a task's name or `module:factory`.
        algo: an algorithm's name, or its settings as an object, which is taken as it is whatever the preset says.
        preset: a name in `presets/`, a `.toml` file, or None for the task's own preset if there is one.
        run: fields of `RunConfig` given explicitly; those that are None are ignored.
        settings: further `key=value` settings, of the run, the algorithm or (`env.size`) the environment.

    """
    if not isinstance(algo, str | AlgorithmConfig):
        raise UserError(f"Expected algo to be a name or settings such as goalward.CPPO(clip=0.1); found {algo!r}.")
    name = algo if isinstance(algo, str) else algo.name
    config_class = algorithm_class(name)
    preset_name, tables = load_preset(preset, task, name)
    run_values = tables["run"]
    if run_values.pop("own_modules", False) and (isinstance(algo, str) or not algo.has_modules):
        raise UserError(
            f"The preset '{preset_name}' is of a run with networks of your own, which no file holds; "
            f"pass them again as algo=goalward.{config_class.__name__}(networks=...)."
        )
    spoken_of = [other for other in ALGORITHMS if other in tables]
    if isinstance(algo, str) and spoken_of and name not in spoken_of:
        raise UserError(
            f"The preset '{preset_name}' has settings of {', '.join(spoken_of)}, and none of {name}; use another."
        )
    algo_table = tables.get(name, {}) if isinstance(algo, str) else {}
    algo_values = coerce_fields(config_class, algo_table, f"preset {preset_name}")
    given = {key: value for key, value in (run or {}).items() if value is not None}
    run_values |= coerce_fields(RunConfig, given, "the arguments")
    for_run, for_algo, for_env = _sort_settings({} if settings is None else settings, config_class)
    env_values = tables.get("env", {}) | for_env
    config = RunConfig(task=task, algo=name, preset=preset_name, env=env_values, **run_values | for_run)
    base = config_class() if isinstance(algo, str) else algo
    plan = Plan(config, dataclasses.replace(base, **algo_values | for_algo))
    plan.check_steps()
    return plan


def _sort_settings(
    settings: Mapping[str, Any], config_class: type[AlgorithmConfig]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Returns the settings of the run, those of the algorithm and the arguments of the environment."""
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise UserError(f"Expected settings to be a dictionary such as {{'clip': 0.1}}; found {settings!r}.")
    arguments = {"task", "algo", "preset", "goal", "reward"}
    run_fields = set(field_types(RunConfig)) - arguments - {"own_modules"}
    algo_fields = set(field_types(config_class))
    for_run, for_algo, for_env = {}, {}, {}
    for key, value in settings.items():
        if key.startswith("env."):
            for_env[key.removeprefix("env.")] = plain_number(value)
        elif key in run_fields:
            for_run[key] = value
        elif key in algo_fields:
            for_algo[key] = value
        else:
            if key in arguments:
                raise UserError(f"'{key}' is no setting; it has an argument of its own.")
            if key == "networks":
                example = f"algo=goalward.{config_class.__name__}(networks=...)"
                raise UserError(f"networks are Flax modules; pass them in Python, as {example}.")
            owners = [name for name in ALGORITHMS if key in field_types(algorithm_class(name))]
            if owners:
                raise UserError(f"{key} is a setting of {', '.join(owners)}, and not of {config_class.name}.")
            raise unknown_name("setting", key, run_fields | algo_fields)
    return coerce_fields(RunConfig, for_run, "--set"), coerce_fields(config_class, for_algo, "--set"), for_env


def load_preset(preset: str | Path | None, task: str, algo: str) -> tuple[str, dict[str, Any]]:
    """Returns a preset's name and its tables `run`, `env` and one per algorithm.

    Without a name it is the task's own, `tuned`, or the suite's, `published`, whichever speaks of the algorithm first.
    """
    if not isinstance(preset, str | Path | None):
        raise UserError(f"Expected preset to be a name or a .toml file; found {preset!r}.")
    folder = resources.files("goalward") / "presets"
    bound = {"tuned": folder / f"{task}.toml", "published": folder / "suites" / f"{task.partition('/')[0]}.toml"}
    if preset is None:
        preset = next(
            (name for name, path in bound.items() if is_registered(task) and _speaks_of(path, algo)), "default"
        )
    preset = str(preset)
    if preset.endswith(".toml"):
        path: Any = Path(preset)
        if not _is_file(path):
            raise UserError(f"Expected the preset '{preset}' to be a TOML file; there is none at that path.")
    elif preset in bound:
        path = bound[preset]
        if not _is_file(path):
            files = {name: folder / f"{name}.toml" for name in preset_names()} | bound
            fitting = [name for name, file in files.items() if _is_file(file) and _suits(file, algo)]
            raise UserError(f"Task '{task}' has no {preset} preset. Use one of: {', '.join(fitting)}.")
    else:
        if preset not in preset_names():
            raise unknown_name("preset", preset, [*preset_names(), *bound])
        path = folder / f"{preset}.toml"
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"Expected the preset '{preset}' to be readable; {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:  # TOML and UTF-8 errors, numbers of thousands of digits
        raise UserError(f"The preset '{preset}' is not valid TOML; {brief(error)}.") from error
    _check_tables(tables, f"preset {preset}")
    run = coerce_fields(RunConfig, tables.get("run", {}), f"preset {preset}")
    tables["run"] = run
    # A run's config.toml may serve as a preset; its goal and reward suit its own task only.
    foreign = ("goal", "reward") if run.get("task", task) != task else ()
    for key in ("task", "algo", "preset", *foreign):
        run.pop(key, None)
    return preset, tables


def _speaks_of(path: Any, algo: str) -> bool:
    return _is_file(path) and algo in tomllib.loads(path.read_text(encoding="utf-8"))


def _suits(path: Any, algo: str) -> bool:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return algo in tables or not any(other in tables for other in ALGORITHMS)


def _is_file(path: Any) -> bool:
    """Returns whether there is a file; a name that no file can have names none."""
    try:
        return bool(path.is_file())
    except OSError:
        return False


def _check_tables(tables: dict[str, Any], source: str) -> None:
    for name, table in tables.items():
        if name not in {"run", "env", *ALGORITHMS}:
            raise unknown_name(f"table in {source}:", name, ["run", "env", *ALGORITHMS])
        if not isinstance(table, dict):
            raise UserError(f"Expected '{name}' in {source} to be a table of settings; found {table!r}.")


def preset_names() -> list[str]:
    """Returns the presets that suit every task."""
    folder = resources.files("goalward") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def parse_setting(text: str) -> tuple[str, Any]:
    """Returns the key and the value of `key=value`; the value is read as TOML, else as a word.

    >>> parse_setting("hidden_sizes=[64, 64]")
    ('hidden_sizes', [64, 64])
    """
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        hint = " A task comes before --set." if "/" in text or ":" in text else ""
        raise UserError(f"Expected --set key=value; found '{text}'.{hint}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # not TOML, or beyond what its reader takes
        return key.strip(), value.strip()
