"""Saved runs: their policies, and how well they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from goalward.algos.base import ALGORITHMS, AlgorithmConfig
from goalward.envs.base import GoalEnv
from goalward.envs.traced import TracedOnce
from goalward.errors import UserError, plain_number
from goalward.run.checkpoint import Checkpoints
from goalward.run.directory import RunDirectory
from goalward.run.memory import memory_explained, require_memory_for_episodes
from goalward.run.policy import Policy
from goalward.run.prepare import prepare
from goalward.run.program import Program
from goalward.run.state import first_state
from goalward.run.train import environment_of, settings_of


def load(
    path: str | Path,
    *,
    seed: int | None = None,
    env: GoalEnv | str | None = None,
    algo: AlgorithmConfig | None = None,
) -> Policy:
    """Returns the newest saved policy of one seed of a run.

    Args:
        path: the run's directory.
        seed: which seed; None takes the first.
        env: the environment, if it is not a task that goalward knows by name.
        algo: the settings with the modules, if the run was trained with modules of your own.

    With `run = gw.train("toy/rooms")`, both `gw.load(run.path)` and `run.policies[0]` are its first policy:

        policy = gw.load("runs/toy/rooms/cppo/DATE", seed=2)
        action = policy.act(step.obs, step.goal, step.action_mask)

    """
    policies = load_all(path, env=env, algo=algo)[1]
    wanted = plain_number(seed)
    chosen = (
        policies[0] if wanted is None else next((p for p in policies if (type(wanted), wanted) == (int, p.seed)), None)
    )
    if chosen is None:
        raise UserError(f"Expected one of the run's seeds {[p.seed for p in policies]}; found {seed!r}.")
    return chosen


def load_all(
    path: str | Path, *, env: GoalEnv | str | None = None, algo: AlgorithmConfig | None = None
) -> tuple[GoalEnv, list[Policy]]:
    """Returns a run's environment and the newest saved policies of all its seeds."""
    saved = _Saved(path, env, algo)
    policies = [
        Policy(saved.learner, jax.tree.map(lambda x, i=i: x[i], saved.params), seed)
        for i, seed in enumerate(saved.seeds)
    ]
    return saved.env, policies


def evaluate_run(
    path: str | Path,
    *,
    episodes: int | None = None,
    greedy: bool = False,
    env: GoalEnv | str | None = None,
    algo: AlgorithmConfig | None = None,
) -> dict[str, Any]:
    """Returns win rates of a run's newest policies on fresh episodes: `win_rate`, `win_rate_per_seed`, `episodes`."""
    episodes = plain_number(episodes)
    if episodes is not None and (type(episodes) is not int or episodes < 1):
        raise UserError(f"episodes must be a whole number of at least 1; found {episodes!r}.")
    saved = _Saved(path, env, algo)
    count = episodes or saved.plan.run.eval_episodes
    require_memory_for_episodes(saved.program, len(saved.seeds), count)
    with memory_explained():
        result = jax.device_get(saved.program.evaluate_fresh(saved.params, count, greedy=greedy))
    return {
        "win_rate": float(result.win_rate.mean()),
        "win_rate_per_seed": [float(x) for x in result.win_rate],
        "return_per_seed": [float(x) for x in result.ret],
        "length_per_seed": [float(x) for x in result.length],
        "task_metrics_per_seed": {name: [float(x) for x in values] for name, values in result.metrics.items()},
        "seeds": list(saved.seeds),
        "episodes": count,
        "greedy": greedy or ALGORITHMS[saved.plan.run.algo].greedy,
        "task": saved.plan.task_name(saved.env),
        "algo": saved.plan.run.algo,
        "step": saved.iteration * saved.learner.steps_per_iteration,
    }


class _Saved:
    """The newest state of a run, brought back."""

    def __init__(self, path: str | Path, env: GoalEnv | str | None, algo: AlgorithmConfig | None) -> None:
        prepare()
        directory = RunDirectory.open(path)
        self.plan = directory.plan()
        self.env = environment_of(self.plan, env)
        self.learner = settings_of(self.plan, algo).bind(TracedOnce(self.env), self.plan.num_iterations)
        self.seeds = self.plan.seed_numbers
        self.program = Program(self.learner, self.seeds)
        if not directory.checkpoints.is_dir():
            raise UserError(f"The run '{path}' has no checkpoint yet.")
        with Checkpoints(directory.checkpoints) as checkpoints:
            newest = checkpoints.latest()
            if newest is None:
                raise UserError(f"The run '{path}' has no checkpoint yet.")
            state, _ = checkpoints.restore(newest, jax.eval_shape(lambda: first_state(self.program)))
        self.iteration: int = newest
        self.params = state.learner.params
