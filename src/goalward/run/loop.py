"""The training loop: the only Python loop. Everything numerical happens in the compiled functions of `Program`."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh

from goalward.algos.base import Learner
from goalward.envs.base import GoalEnv, can_render, can_survey
from goalward.envs.tasks import TASKS
from goalward.errors import GoalwardError, UserError, brief
from goalward.evaluate.records import marl_eval_layout
from goalward.evaluate.schedule import evaluation_iterations
from goalward.run.checkpoint import Checkpoints
from goalward.run.config import Plan
from goalward.run.devices import layout, num_sharing
from goalward.run.directory import RunDirectory, write_json
from goalward.run.interrupts import catch_interrupts
from goalward.run.media import save_episodes, save_survey
from goalward.run.memory import memory_explained, require_memory_of
from goalward.run.policy import Policy
from goalward.run.processes import from_all, from_first, is_first, to_host
from goalward.run.program import MAX_ITERATIONS_PER_CALL, Evaluation, Program
from goalward.run.progress import Reporter

_SECONDS_PER_CALL = 1.0  # how often the progress bar moves and Ctrl-C is heard


class Interrupted(KeyboardInterrupt):
    """The user stopped the run; its state is saved, and the message says how to go on."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path
    plan: Plan
    records: list[dict[str, Any]] = field(repr=False)  # one per evaluation and seed, as in metrics.jsonl
    final: list[dict[str, Any]]  # one per seed: win rates of the last policy, and of the best one if measured
    policies: list[Policy] = field(repr=False)  # one per seed

    @property
    def win_rate(self) -> float:
        """Mean over seeds of the final sampled win rate."""
        return float(np.mean([row["sampled"] for row in self.final]))


@dataclass
class Progress:
    """How far a run has come; saved beside every checkpoint."""

    iteration: int = 0
    elapsed: float = 0.0  # seconds, compilation included, earlier parts of a resumed run included
    history: list[dict[str, list[float]]] = field(default_factory=list)  # metrics since the last evaluation


class TrainingState(struct.PyTreeNode):
    """All that training carries, for all seeds."""

    learner: Any  # [S, ...]
    best: Any  # [S, ...], the parameters that did best in an evaluation so far
    best_win_rate: jax.Array  # [S], -1 before the first evaluation


def first_state(program: Program) -> TrainingState:
    """Returns the state before the first iteration."""
    learner = program.init()
    # A copy, since the learner's own buffers are given away to each training call.
    best = jax.tree.map(jnp.copy, learner.params)
    none_yet = program.place(np.full(program.num_rows, -1.0, np.float32))
    return TrainingState(learner=learner, best=best, best_win_rate=none_yet)


class Training:
    """One run from its first or newest state to its end."""

    def __init__(
        self,
        directory: RunDirectory,
        plan: Plan,
        env: GoalEnv,
        learner: Learner,
        reporter: Reporter,
        *,
        mesh: Mesh | None = None,
    ) -> None:
        self.directory = directory
        self.plan = plan
        self.env = env
        self.learner = learner
        self.reporter = reporter
        self.seeds = range(plan.run.first_seed, plan.run.first_seed + plan.run.seeds)
        self.mesh = mesh
        self.program = Program(env, learner, self.seeds, mesh)
        self.evaluations = evaluation_iterations(plan.num_iterations, plan.run.num_evaluations)
        self.progress = Progress()
        self.evaluated: set[int] = set()  # iterations whose evaluation is on record
        self.seconds_per_iteration: float | None = None
        self.training_seconds: list[float] = []  # of every call, in this process
        self.evaluation_seconds: list[float] = []  # the first of them compiles
        self.started = time.perf_counter()
        self.checkpoints = Checkpoints(directory.checkpoints, plan.run.keep_checkpoints)

    def run(self) -> Run:
        """Returns the finished run."""
        try:
            with self.checkpoints, memory_explained(), catch_interrupts() as event:

                def is_interrupted() -> bool:
                    return bool(from_all(event.is_set()).any())

                self._announce()
                state = self._train(self._first_or_newest_state(), is_interrupted)
                return self._finish(state, is_interrupted)
        except Interrupted:
            raise
        except KeyboardInterrupt:
            jax.block_until_ready(jax.live_arrays())  # Python must not exit under a computation that still runs
            begun = self.directory.checkpoints.is_dir() and any(self.directory.checkpoints.iterdir())
            saved = "everything up to the last checkpoint is saved" if begun else "there was no checkpoint yet"
            raise self._interrupted(saved) from None

    def _train(self, state: TrainingState, is_interrupted: Callable[[], bool]) -> TrainingState:
        """Returns the state after the last iteration, evaluated."""
        with self.reporter.compiling("training"):
            advance = self.program.advance.lower(state.learner, np.int32(1)).compile()
        require_memory_of(advance, self.learner, num_devices=num_sharing(self.mesh))
        if self._evaluation_is_due():
            with self.reporter.compiling("evaluation"):
                state = self._evaluate(state)
        with self.reporter.training(self.plan.num_iterations, self.progress.iteration):
            while True:
                if self._evaluation_is_due():
                    state = self._evaluate(state)
                if is_interrupted():
                    self._save(state)
                    raise self._interrupted("everything is saved")
                if self.progress.iteration == self.plan.num_iterations:
                    return state
                state = self._iterate(advance, state)

    def _announce(self) -> None:
        plan, run = self.plan, self.plan.run
        self.reporter.say(plan.to_toml())
        seeds = "1 seed" if run.seeds == 1 else f"{run.seeds} seeds"
        self.reporter.say(
            f"{seeds} of {plan.task_name(self.env)} with {run.algo}: {plan.num_iterations:,} iterations x "
            f"{plan.algo.steps_per_iteration():,} = {plan.total_steps:,} environment steps per seed "
            f"({run.steps:,} asked for); {len(self.evaluations)} evaluations of {run.eval_episodes:,} episodes."
        )
        if self.learner.replay_bytes:
            self.reporter.say(
                f"Replay: {self.learner.replay_bytes / 1e6:,.1f} MB per seed, "
                f"{run.seeds * self.learner.replay_bytes / 1e6:,.1f} MB in all."
            )
        if self.mesh is not None:
            self.reporter.say(layout(self.mesh, run.seeds, self.learner.num_envs))
        self.reporter.say(f"Run directory: {self.directory.path}")

    def _first_or_newest_state(self) -> TrainingState:
        shapes = jax.eval_shape(lambda: first_state(self.program))
        newest = self.checkpoints.latest()
        if newest is None:
            from_first(lambda: self.directory.keep_records(up_to_iteration=-1))
            return first_state(self.program)
        state, saved = self.checkpoints.restore(newest, shapes, self.program.place)
        elapsed, history = saved.get("elapsed"), saved.get("history")
        if not isinstance(elapsed, int | float) or not isinstance(history, list):
            raise UserError(
                f"Expected the progress of the checkpoint {self.directory.checkpoints / str(newest)} to hold a number "
                f"`elapsed` and a list `history`; found {sorted(saved)}. Delete it to use an older one."
            )
        self.progress = Progress(newest, elapsed, history)
        self.evaluated = self._evaluations_on_record(newest)
        from_first(lambda: self.directory.keep_records(up_to_iteration=newest))
        self.reporter.say(f"Going on after iteration {newest:,} of {self.plan.num_iterations:,}.")
        self.started = time.perf_counter() - self.progress.elapsed
        restored: TrainingState = state
        return restored

    def _evaluations_on_record(self, newest: int) -> set[int]:
        """Returns the iterations up to `newest` that were evaluated; raises if one lacks a seed."""
        seeds: dict[int, list[int]] = {}
        for record in from_first(self.directory.read_records):
            if record["iteration"] <= newest:
                seeds.setdefault(record["iteration"], []).append(record["seed"])
        for iteration, found in seeds.items():
            if found != list(self.seeds):
                raise UserError(
                    f"Expected '{self.directory.metrics}' to hold one line per seed for iteration {iteration}; "
                    f"found seeds {found}. Bring the file back as the run wrote it."
                )
        missing = [iteration for iteration in self.evaluations if iteration <= newest and iteration not in seeds]
        if missing:
            raise UserError(
                f"Expected '{self.directory.metrics}' to hold the evaluation after iteration {missing[0]}; found none. "
                "Bring the file back as the run wrote it."
            )
        return set(seeds)

    def _iterate(self, advance: Any, state: TrainingState) -> TrainingState:
        """Returns the state some iterations later, no further than the next evaluation."""
        next_evaluation = min(i for i in self.evaluations if i > self.progress.iteration)
        count = min(next_evaluation - self.progress.iteration, self._iterations_per_call())
        began = time.perf_counter()
        learner, metrics = advance(state.learner, np.int32(count))
        history = {name: np.asarray(values)[:count] for name, values in metrics.items()}
        self.training_seconds.append(time.perf_counter() - began)
        # One pace for all processes, which make the same calls.
        self.seconds_per_iteration = float(from_all(np.float32(self.training_seconds[-1] / count)).max())
        self._check_finite(history)
        self.progress.history += [{name: values[i].tolist() for name, values in history.items()} for i in range(count)]
        self.progress.iteration += count
        episodes, wins = history["rollout/episodes"].sum(), history["rollout/wins"].sum()
        self.reporter.iterated(
            self.progress.iteration,
            float(wins / episodes) if episodes else None,
            len(self.seeds) * self.learner.steps_per_iteration / self.seconds_per_iteration,
        )
        return state.replace(learner=learner)

    def _iterations_per_call(self) -> int:
        if self.seconds_per_iteration is None:
            return 1
        return max(1, min(MAX_ITERATIONS_PER_CALL, int(_SECONDS_PER_CALL / self.seconds_per_iteration)))

    def _check_finite(self, history: dict[str, Any]) -> None:
        bad = {name: ~np.isfinite(values) for name, values in history.items()}
        first = {name: int(np.argmax(where.any(1))) for name, where in bad.items() if where.any()}
        if not first:
            return
        name = min(first, key=lambda n: first[n])
        seed = self.seeds[int(np.argmax(bad[name][first[name]]))]
        newest = self.checkpoints.latest()
        kept = "there is no checkpoint before it"
        if newest is not None:
            kept = f"the last good checkpoint is {self.directory.checkpoints / str(newest)}"
        raise GoalwardError(
            f"{name} of seed {seed} became non-finite in iteration {self.progress.iteration + first[name] + 1}; "
            f"{kept}. Smaller learning rates or a smaller max_grad_norm usually help."
        )

    def _evaluation_is_due(self) -> bool:
        return self.progress.iteration in self.evaluations and self.progress.iteration not in self.evaluated

    def _evaluate(self, state: TrainingState) -> TrainingState:
        """Returns the state with the best parameters brought up to date; the evaluation is recorded and saved."""
        index = self.evaluations.index(self.progress.iteration)
        params = state.learner.params
        began = time.perf_counter()
        evaluation = jax.block_until_ready(self.program.evaluate(params, index, self.plan.run.eval_episodes))
        self.evaluation_seconds.append(time.perf_counter() - began)
        better = evaluation.win_rate > state.best_win_rate

        def pick(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(better.reshape(better.shape + (1,) * (new.ndim - 1)), new, old)

        state = state.replace(
            best=jax.tree.map(pick, params, state.best),
            best_win_rate=jnp.where(better, evaluation.win_rate, state.best_win_rate),
        )
        self._record(index, evaluation)
        self._save(state)
        return state

    def _record(self, index: int, evaluation: Evaluation) -> None:
        step = self.progress.iteration * self.learner.steps_per_iteration
        where = {
            "evaluation": index,
            "iteration": self.progress.iteration,
            "step": step,
            "elapsed": round(time.perf_counter() - self.started, 3),
            "episodes": self.plan.run.eval_episodes,
        }
        rows = _per_seed(evaluation)
        records = [
            {**where, "seed": seed, **row, **_summary(self.progress.history, i)}
            for i, (seed, row) in enumerate(zip(self.seeds, rows, strict=True))
        ]
        from_first(lambda: self.directory.append_records(records))
        self.evaluated.add(self.progress.iteration)
        self.progress.history = []
        self.reporter.evaluated(step, [row["win_rate"] for row in rows])

    def _save(self, state: TrainingState) -> None:
        self.progress.elapsed = time.perf_counter() - self.started
        saved = {"elapsed": self.progress.elapsed, "history": self.progress.history}
        self.checkpoints.save(self.progress.iteration, state, saved)

    def _finish(self, state: TrainingState, is_interrupted: Callable[[], bool]) -> Run:
        """Returns the run, with the last and the best policies measured, recorded and shown."""

        def stop_if_asked() -> None:
            if is_interrupted():
                raise self._interrupted("everything is saved")

        run = self.plan.run
        params = state.learner.params
        records = from_first(self.directory.read_records)
        last = [record for record in records if record["iteration"] == self.plan.num_iterations]
        greedy = _per_seed(self.program.evaluate(params, len(self.evaluations) - 1, run.eval_episodes, greedy=True))
        final = [
            {"seed": record["seed"], "sampled": record["win_rate"], "greedy": row["win_rate"]}
            for record, row in zip(last, greedy, strict=True)
        ]
        stop_if_asked()
        absolute = None
        if run.absolute_factor:
            best = self.program.evaluate_absolute(state.best, run.absolute_factor * run.eval_episodes)
            absolute = dict(zip(self.seeds, _per_seed(best), strict=True))
            for row in final:
                row["best checkpoint"] = absolute[row["seed"]]["win_rate"]
        stop_if_asked()
        free = params if self.mesh is None else jax.tree.map(jnp.asarray, to_host(params))  # of the mesh
        policies = [
            Policy(self.learner, jax.tree.map(lambda x, i=i: x[i], free), seed) for i, seed in enumerate(self.seeds)
        ]
        if run.render_episodes and is_first():
            self._show(policies[0])
        stop_if_asked()
        # Last of all: a run with results is finished.
        results = marl_eval_layout(records, absolute, task=self.plan.task_name(self.env), algo=run.algo)
        from_first(lambda: write_json(self.directory.results, results))
        self.reporter.finished(final)
        self._tell_ceilings()
        self._tell_evaluation_share()
        self.reporter.say(f"Done in {time.perf_counter() - self.started:.0f} s: {self.directory.path}")
        return Run(self.directory.path, self.plan, records, final, policies)

    def _tell_ceilings(self) -> None:
        """Says what no policy can exceed where a task has targets that cannot be reached."""
        task = TASKS.get(self.plan.run.task)
        if task and task.ceilings and not self.plan.run.env:
            bounds = task.ceilings_in_words
            self.reporter.say(f"No policy can exceed {bounds} on {task.name}: other targets cannot be reached.")

    def _tell_evaluation_share(self) -> None:
        """Says how much of the time between the first evaluation and the last went into evaluating."""
        training, evaluating = sum(self.training_seconds), sum(self.evaluation_seconds[1:])
        if training and evaluating:
            share = evaluating / (training + evaluating)
            self.reporter.say(f"Evaluations took {share:.0%} of the time after compilation.")

    def _show(self, policy: Policy) -> None:
        """Makes the pictures; a mistake in the user's `render` or `survey` costs the picture, not the run."""
        media, key = self.directory.media, self.program.film_key()
        if can_survey(self.env):
            try:
                save_survey(media / "survey.json", self.env, policy, key)
            except Exception as error:
                self.reporter.say(f"The survey could not be made; {brief(error)}.")
        if can_render(self.env):
            try:
                save_episodes(media / "episodes.gif", self.env, policy, key, self.plan.run.render_episodes)
            except Exception as error:
                self.reporter.say(f"The picture could not be made; {brief(error)}.")
            else:
                self.reporter.say(f"Episodes of seed {policy.seed}: {media / 'episodes.gif'}")

    def _interrupted(self, what: str) -> Interrupted:
        task, path = self.plan.run.task, self.directory.path
        own_task = f"{task} " if ":" in task else ""
        command = f"goalward train {own_task}--resume {shlex.quote(str(path))}"
        if not self.plan.is_reproducible:
            command = f"goalward.resume({str(path)!r}, env=..., algo=...) with your own environment and modules"
        return Interrupted(f"Stopped after iteration {self.progress.iteration}; {what}. Go on with: {command}")


def _per_seed(evaluation: Evaluation) -> list[dict[str, float]]:
    """Returns the numbers of an evaluation as one row per seed, by the names they have on disk."""
    columns = {
        "win_rate": evaluation.win_rate,
        "return": evaluation.ret,
        "length": evaluation.length,
        **{f"task/{name}": values for name, values in evaluation.metrics.items()},
    }
    columns = jax.device_get(columns)
    return [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def _summary(history: list[dict[str, list[float]]], row: int) -> dict[str, float | None]:
    """Returns the means of one seed's training metrics since the last evaluation."""
    if not history:
        return {}
    means: dict[str, float | None] = {
        name: math.fsum(metrics[name][row] for metrics in history) / len(history) for name in history[0]
    }
    episodes, wins = (math.fsum(m[name][row] for m in history) for name in ("rollout/episodes", "rollout/wins"))
    means["rollout/win_rate"] = wins / episodes if episodes else None
    return means
