"""One run of a training: its files, and what it records in them. Several runs may train in one program."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from goalward.algos.base import Learner
from goalward.envs.base import can_render, can_survey
from goalward.errors import UserError, brief
from goalward.evaluate.records import marl_eval_layout
from goalward.evaluate.schedule import evaluation_iterations
from goalward.run.checkpoint import Checkpoints
from goalward.run.config import Plan
from goalward.run.directory import RunDirectory, write_json
from goalward.run.media import save_episodes, save_survey
from goalward.run.policy import Policy
from goalward.run.processes import from_first, is_first, to_host
from goalward.run.program import Evaluation, Program
from goalward.run.progress import Reporter
from goalward.run.state import Progress, TrainingState


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


class Member:
    """One run of a training; states and progress are those of its own seeds."""

    def __init__(self, directory: RunDirectory, plan: Plan, learner: Learner) -> None:
        self.directory = directory
        self.plan = plan
        self.learner = learner
        self.seeds = plan.seed_numbers
        self.evaluations = evaluation_iterations(plan.num_iterations, plan.run.num_evaluations)
        self.checkpoints = Checkpoints(directory.checkpoints, plan.run.keep_checkpoints)

    def restore(
        self, iteration: int, like: TrainingState, place: Callable[[Any], Any] | None
    ) -> tuple[TrainingState, Progress]:
        """Returns the state and the progress of a checkpoint; raises if the records up to it are not all there.

        `place` puts arrays of the host on devices; None takes the default device.
        """
        state, saved = self.checkpoints.restore(iteration, like, place)
        elapsed, history = saved.get("elapsed"), saved.get("history")
        if not isinstance(elapsed, int | float) or not isinstance(history, list):
            raise UserError(
                f"Expected the progress of the checkpoint {self.directory.checkpoints / str(iteration)} to hold a "
                f"number `elapsed` and a list `history`; found {sorted(saved)}. Delete it to use an older one."
            )
        self._check_records(iteration)
        return state, Progress(iteration, elapsed, history)

    def _check_records(self, newest: int) -> None:
        """Raises if an evaluation up to `newest` is not on record, or not for all seeds."""
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

    def record(self, rows: Sequence[dict[str, float]], progress: Progress) -> None:
        """Adds an evaluation, one row per seed, and the means of what was measured in training since the last one."""
        where = {
            "evaluation": self.evaluations.index(progress.iteration),
            "iteration": progress.iteration,
            "step": progress.iteration * self.learner.steps_per_iteration,
            "elapsed": round(progress.elapsed, 3),
            "episodes": self.plan.run.eval_episodes,
        }
        records = [
            {**where, "seed": seed, **row, **_summary(progress.history, i)}
            for i, (seed, row) in enumerate(zip(self.seeds, rows, strict=True))
        ]
        from_first(lambda: self.directory.append_records(records))

    def save(self, state: TrainingState, progress: Progress) -> None:
        """Writes a checkpoint."""
        saved = {"elapsed": progress.elapsed, "history": progress.history}
        self.checkpoints.save(progress.iteration, state, saved)

    def finish(
        self, program: Program, params: Any, best: Any, reporter: Reporter, stop_if_asked: Callable[[], None]
    ) -> Run:
        """Returns the run, with the last and the best policies measured, recorded and shown.

        Args:
            program: one that has the run's seeds as its rows.
            params: [S, ...], the last parameters.
            best: [S, ...], those that did best in an evaluation.
            reporter: hears of it.
            stop_if_asked: raises if the user wants to stop; what is done by then is done again later.

        """
        run = self.plan.run
        records = from_first(self.directory.read_records)
        last = [record for record in records if record["iteration"] == self.plan.num_iterations]
        greedy = per_row(program.evaluate(params, len(self.evaluations) - 1, run.eval_episodes, greedy=True))
        final = [
            {"seed": record["seed"], "sampled": record["win_rate"], "greedy": row["win_rate"]}
            for record, row in zip(last, greedy, strict=True)
        ]
        stop_if_asked()
        absolute = None
        if run.absolute_factor:
            measured = program.evaluate_absolute(best, run.absolute_factor * run.eval_episodes)
            absolute = dict(zip(self.seeds, per_row(measured), strict=True))
            for row in final:
                row["best checkpoint"] = absolute[row["seed"]]["win_rate"]
        stop_if_asked()
        free = jax.tree.map(jnp.asarray, to_host(params))  # of the mesh, where there is one
        policies = [
            Policy(self.learner, jax.tree.map(lambda x, i=i: x[i], free), seed) for i, seed in enumerate(self.seeds)
        ]
        if run.render_episodes and is_first():
            self._show(policies[0], program.film_key(), reporter)
        stop_if_asked()
        # Last of all: a run with results is finished.
        task = self.plan.task_name(self.learner.env)
        results = marl_eval_layout(records, absolute, task=task, algo=run.algo)
        from_first(lambda: write_json(self.directory.results, results))
        reporter.finished(final)
        return Run(self.directory.path, self.plan, records, final, policies)

    def _show(self, policy: Policy, key: jax.Array, reporter: Reporter) -> None:
        """Makes the pictures; a mistake in the user's `render` or `survey` costs the picture, not the run."""
        media, env = self.directory.media, self.learner.env
        if can_survey(env):
            try:
                save_survey(media / "survey.json", env, policy, key)
            except Exception as error:
                reporter.say(f"The survey could not be made; {brief(error)}.")
        if can_render(env):
            try:
                save_episodes(media / "episodes.gif", env, policy, key, self.plan.run.render_episodes)
            except Exception as error:
                reporter.say(f"The picture could not be made; {brief(error)}.")
            else:
                reporter.say(f"Episodes of seed {policy.seed}: {media / 'episodes.gif'}")

    @property
    def resume_command(self) -> str:
        """What goes on with the run."""
        task, path = self.plan.run.task, self.directory.path
        if not self.plan.is_reproducible:
            return f"goalward.resume({str(path)!r}, env=..., algo=...) with your own environment and modules"
        own_task = f"{task} " if ":" in task else ""
        return f"goalward train {own_task}--resume {shlex.quote(str(path))}"


def per_row(evaluation: Evaluation) -> list[dict[str, float]]:
    """Returns the numbers of an evaluation as one dictionary per row, by the names they have on disk."""
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
