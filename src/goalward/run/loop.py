"""The training loop: the only Python loop. Everything numerical happens in the compiled functions of `Program`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from goalward.algos.settings import traced_fields
from goalward.envs.tasks import TASKS
from goalward.errors import GoalwardError, PartnerLost, UserError, counted
from goalward.run.checkpoint import on_host
from goalward.run.devices import layout, num_sharing
from goalward.run.interrupts import catch_interrupts
from goalward.run.member import Member, Run, per_row
from goalward.run.memory import memory_explained, require_memory_of
from goalward.run.processes import from_all, from_first, in_all, is_first, losses_explained
from goalward.run.program import MAX_ITERATIONS_PER_CALL, Programs
from goalward.run.progress import Reporter
from goalward.run.state import Progress, TrainingState, first_state, joined_progress, joined_states

_SECONDS_PER_CALL = 1.0  # how often the progress bar moves and Ctrl-C is heard


class Interrupted(KeyboardInterrupt):
    """The user stopped the training; its state is saved, and the message says how to go on."""


class Training:
    """Runs from their first or newest state to their end: one, or several that differ in traced settings alone.

    Rows of the state are the seeds of the first run, then those of the second, and so on.
    """

    def __init__(self, members: Sequence[Member], programs: Programs, reporter: Reporter) -> None:
        first = members[0]
        self.members = members
        self.plan = first.plan  # what is read of it is the same for all
        self.learner = first.learner
        self.env = first.learner.env
        self.evaluations = first.evaluations
        self.reporter = reporter
        self.program, self.program_alone = programs
        self.mesh = self.program.mesh
        self.progress = Progress()
        self.evaluated: set[int] = set()  # iterations whose evaluation is on record
        self.seconds_per_iteration: float | None = None
        self.training_seconds: list[float] = []  # of every call, in this process
        self.evaluation_seconds: list[float] = []
        self.saving_seconds: list[float] = []
        self.began = time.perf_counter()
        self.started = self.began  # earlier by what a resumed run took before

    def run(self) -> list[Run]:
        """Returns the finished runs."""
        try:
            with ExitStack() as opened, memory_explained(), losses_explained(), catch_interrupts() as event:
                for member in self.members:
                    opened.enter_context(member.checkpoints)

                def any_is_interrupted() -> bool:
                    return bool(from_all(event.is_set()).any())

                self._announce()
                state = self._train(any_is_interrupted)
                return self._finish(state, any_is_interrupted)
        except Interrupted:
            raise
        except PartnerLost as error:
            raise PartnerLost(f"{error}{self._way_on()}") from error
        except KeyboardInterrupt:
            jax.block_until_ready(jax.live_arrays())  # Python must not exit under a computation that still runs
            raise self._interrupted(self._saved_so_far()) from None

    def _saved_so_far(self) -> str:
        if not is_first():  # the others need not see the directory
            return "what is saved, if anything, lies where the first process runs"
        return "everything up to the last checkpoint is saved" if self._has_begun() else "there was no checkpoint yet"

    def _has_begun(self) -> bool:
        return all(member.directory.has_begun for member in self.members)

    def _way_on(self) -> str:
        """Returns how to go on after a failure, which leaves nothing behind of a run that had not begun."""
        has_begun = is_first() and self._has_begun()  # the others need not see the directory
        return f" Go on from the last checkpoint with: {self._resume_commands()}" if has_begun else ""

    def _resume_commands(self) -> str:
        return "; ".join(member.resume_command for member in self.members)

    def _train(self, any_is_interrupted: Callable[[], bool]) -> TrainingState:
        """Returns the state after the last iteration, evaluated."""
        state = self._newest_state()
        if state is not None and self.progress.iteration == self.plan.num_iterations:
            return state
        with self.reporter.waiting("Compiling training and evaluation"):
            advance = self.program.compile(self.plan.run.eval_episodes, is_new=state is None)
            if state is None:
                state = first_state(self.program)
        in_all(partial(require_memory_of, advance, state.best, self.learner, num_devices=num_sharing(self.mesh)))
        if self._evaluation_is_due():
            with self.reporter.waiting("Evaluating the first policy"):
                state = self._evaluate(state)
                self._save_if_due(state)
        with self.reporter.training(self.plan.num_iterations, self.progress.iteration):
            while True:
                if self._evaluation_is_due():
                    state = self._evaluate(state)
                    self._save_if_due(state)  # here, where the best parameters of before are gone
                if any_is_interrupted():
                    self._save(state)
                    raise self._interrupted("everything is saved")
                if self.progress.iteration == self.plan.num_iterations:
                    return state
                state = self._iterate(advance, state)

    def _announce(self) -> None:
        plan, run = self.plan, self.plan.run
        self.reporter.say(plan.to_toml())
        seeds = counted(run.seeds, "seed")
        runs = "" if len(self.members) == 1 else f"{len(self.members)} runs in one program, each of "
        self.reporter.say(
            f"{runs}{seeds} of {plan.task_name(self.env)} with {run.algo}: {plan.num_iterations:,} iterations x "
            f"{plan.algo.steps_per_iteration():,} = {plan.total_steps:,} environment steps per seed "
            f"({run.steps:,} asked for); {len(self.evaluations)} evaluations of {run.eval_episodes:,} episodes."
        )
        if self.learner.replay_bytes:
            self.reporter.say(
                f"Replay: {self.learner.replay_bytes / 1e6:,.1f} MB per seed, "
                f"{self.program.num_rows * self.learner.replay_bytes / 1e6:,.1f} MB in all."
            )
        if self.mesh is not None:
            self.reporter.say(layout(self.mesh, self.program.num_rows, self.learner.num_envs))
        for member in self.members:
            self.reporter.say(f"Run directory: {member.directory.path}{self._difference(member)}")

    def _difference(self, member: Member) -> str:
        """Returns what tells a run from the first one, whose settings are shown in full."""
        algo, shown = member.plan.algo, self.plan.algo
        names = [name for name in sorted(traced_fields(type(algo))) if getattr(algo, name) != getattr(shown, name)]
        return f" with {', '.join(f'{name} = {getattr(algo, name)}' for name in names)}" if names else ""

    def _newest_state(self) -> TrainingState | None:
        """Returns the state to go on from, None if there is none."""
        newest = [member.checkpoints.latest() for member in self.members]
        iteration = newest[0]
        if any(other != iteration for other in newest):
            raise UserError(
                "Expected runs that train together to have come equally far; found newest checkpoints of iterations "
                f"{', '.join(map(str, newest))}. Go on with each alone: goalward train --resume RUN"
            )
        if iteration is None:
            self._keep_records(up_to_iteration=-1)
            return None
        shapes = jax.eval_shape(lambda: first_state(self.program_alone))
        # Those of several runs stay with the host until they are one: no single device need hold them all.
        place = self.program.place if len(self.members) == 1 else _as_they_are
        restored = [member.restore(iteration, shapes, place) for member in self.members]
        self.progress = joined_progress([progress for _, progress in restored])
        self.evaluated = {done for done in self.evaluations if done <= iteration}
        self._keep_records(up_to_iteration=iteration)
        self.reporter.say(f"Going on after iteration {iteration:,} of {self.plan.num_iterations:,}.")
        self.started = time.perf_counter() - self.progress.elapsed
        if len(restored) == 1:  # in its place, and without a copy: a replay may take most of the memory
            return restored[0][0]
        together: TrainingState = self.program.spread(joined_states([state for state, _ in restored]))
        return together

    def _keep_records(self, up_to_iteration: int) -> None:
        def keep() -> None:
            for member in self.members:
                member.directory.keep_records(up_to_iteration)

        from_first(keep)

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
            self.program.num_rows * self.learner.steps_per_iteration / self.seconds_per_iteration,
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
        index, seed = divmod(int(np.argmax(bad[name][first[name]])), self.plan.run.seeds)
        member = self.members[index]
        newest = member.checkpoints.latest()
        kept = "there is no checkpoint before it"
        if newest is not None:
            kept = f"the last good checkpoint is {member.directory.checkpoints / str(newest)}"
        raise GoalwardError(
            f"{name} of seed {member.seeds[seed]} became non-finite in iteration "
            f"{self.progress.iteration + first[name] + 1}; "
            f"{kept}. Smaller learning rates or a smaller max_grad_norm usually help."
        )

    def _evaluation_is_due(self) -> bool:
        return self.progress.iteration in self.evaluations and self.progress.iteration not in self.evaluated

    def _evaluate(self, state: TrainingState) -> TrainingState:
        """Returns the state with the best parameters brought up to date; the evaluation is recorded."""
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
        self._record(per_row(evaluation))
        return state

    def _record(self, rows: list[dict[str, float]]) -> None:
        """Records an evaluation, one dictionary per row, for every run."""
        self.progress.elapsed = time.perf_counter() - self.started
        step = self.progress.iteration * self.learner.steps_per_iteration
        for index, member in enumerate(self.members):
            own = self._rows(index)
            member.record(rows[own], self.progress.of(own))
            name = member.directory.path.name if len(self.members) > 1 else ""
            self.reporter.evaluated(step, [row["win_rate"] for row in rows[own]], name)
        self.evaluated.add(self.progress.iteration)
        self.progress.history = []

    def _save_if_due(self, state: TrainingState) -> None:
        """Saves what was evaluated unless saving has exceeded its share of the time; the last state in any case.

        Both are counted from this start, whose first evaluation is saved: a run that is often killed comes forward too.
        """

        def has_kept_to_its_share() -> bool:
            return sum(self.saving_seconds) <= self.plan.run.checkpoint_share * (time.perf_counter() - self.began)

        is_last = self.progress.iteration == self.plan.num_iterations
        if from_first(has_kept_to_its_share) or is_last:  # asked of one clock, since all save together
            self._save(state)

    def _save(self, state: TrainingState) -> None:
        began = time.perf_counter()
        self.progress.elapsed = began - self.started
        for index, (member, part) in enumerate(zip(self.members, self._parts(state), strict=True)):
            member.save(part, self.progress.of(self._rows(index)))
        self.saving_seconds.append(time.perf_counter() - began)

    def _rows(self, index: int) -> slice:
        """Returns the rows of a run."""
        return slice(index * self.plan.run.seeds, (index + 1) * self.plan.run.seeds)

    def _parts(self, tree: Any) -> list[Any]:
        """Returns the rows of each run of a tree [R, ...]; those of several as arrays of the host."""
        if len(self.members) == 1:  # no copy: a replay may take most of the memory
            return [tree]
        # Fetched first: devices exchange what is split over them to cut it, and those of a CPU wait for each other in
        # vain if the programs that do it, one for every array, run at once.
        fetched = on_host(tree)
        return [jax.tree.map(lambda x, i=i: x[self._rows(i)], fetched) for i in range(len(self.members))]

    def _finish(self, state: TrainingState, any_is_interrupted: Callable[[], bool]) -> list[Run]:
        """Returns the runs, each measured, recorded and shown."""

        def stop_if_asked() -> None:
            if any_is_interrupted():
                raise self._interrupted("everything is saved")

        runs = []
        for member, part in zip(self.members, self._parts((state.learner.params, state.best)), strict=True):
            # From the devices that share all rows to the one that measures a run, where that is not the same.
            params, best = self.program_alone.place(part) if len(self.members) > 1 else part
            runs.append(member.finish(self.program_alone, params, best, self.reporter, stop_if_asked))
        self._tell_ceilings()
        self._tell_shares()
        for run in runs:
            self.reporter.say(f"Done in {time.perf_counter() - self.started:.0f} s: {run.path}")
        return runs

    def _tell_ceilings(self) -> None:
        """Says what no policy can exceed where a task has targets that cannot be reached."""
        task = TASKS.get(self.plan.run.task)
        if task and task.ceilings and not self.plan.run.env:
            bounds = task.ceilings_in_words
            self.reporter.say(f"No policy can exceed {bounds} on {task.name}: other targets cannot be reached.")

    def _tell_shares(self) -> None:
        """Says how much of the time went into evaluating and saving."""
        training, evaluating = sum(self.training_seconds), sum(self.evaluation_seconds)
        if training and evaluating:
            saving = sum(self.saving_seconds)
            total = training + evaluating + saving
            self.reporter.say(
                f"Evaluations took {evaluating / total:.0%} and checkpoints {saving / total:.0%} of the time after "
                "compilation."
            )

    def _interrupted(self, what: str) -> Interrupted:
        return Interrupted(
            f"Stopped after iteration {self.progress.iteration}; {what}. Go on with: {self._resume_commands()}"
        )


def _as_they_are(tree: Any) -> Any:
    return tree
