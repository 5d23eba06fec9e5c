"""Every method: a run that is stopped and resumed is bit-equal to one that is not, and seeds do not see each other."""

import re
import shutil

import jax
import numpy as np
import pytest
from exact_runs import SETTINGS as EXACT
from exact_runs import final_state, records_of, same_bits

import goalward as gw
from goalward.run.config import make_plan

# Five iterations, evaluated after 0, 2 and 5; the ring of the replay has gone round by then.
SETTINGS = EXACT | {"seeds": 2, "steps": 5 * 32}
CASES = {
    "ppo": ("toy/routing", {"num_epochs": 2, "norm_obs": True, "value_clip": 0.2}),
    "csac": ("toy/swarm", {"replay_size": 24, "norm_obs": True, "random_goals": 0.5}),
    "icsac": ("toy/routing", {"replay_size": 24}),
    "cdqn": ("toy/rooms", {"replay_size": 24, "mask_same_episode": True}),
}


@pytest.mark.parametrize("algo", CASES)
def test_a_resumed_run_equals_one_that_was_not_stopped(algo, tmp_path, goalward):
    task, settings = CASES[algo]
    run = gw.train(task, algo, preset="quick", settings=SETTINGS | settings, out=tmp_path / "whole")
    stopped = shutil.copytree(run.path, tmp_path / "stopped")
    shutil.rmtree(stopped / "checkpoints" / "5")
    code, out, _ = goalward("train", "--resume", stopped)

    assert code == 0
    announced = re.search(r"^Replay: \d+\.\d MB per seed, \d+\.\d MB in all\.$", out, re.MULTILINE)
    assert bool(announced) == ("replay_size" in settings)

    assert records_of(stopped) == records_of(run.path)
    env = gw.make(task)
    same_bits(final_state(stopped, env), final_state(run.path, env))
    _, step = env.reset(jax.random.key(0))
    policy, trained = gw.load(stopped, seed=1), run.policies[1]
    np.testing.assert_array_equal(policy.act(step.obs, step.goal), trained.act(step.obs, step.goal))


@pytest.mark.parametrize("algo", ["icsac", "ppo"])
def test_a_seed_learns_the_same_alone_and_beside_another(algo):
    task, settings = CASES[algo]
    plan = make_plan(task=task, algo=algo, preset="quick", settings=SETTINGS | settings)
    learner = plan.algo.bind(gw.make(task), plan.num_iterations)
    keys = jax.random.split(jax.random.key(0), 2)

    @jax.jit
    @jax.vmap
    def two_iterations(key):
        state, _ = jax.lax.scan(lambda state, _: (learner.iterate(state)[0], None), learner.init(key), length=2)
        return state

    beside, alone = jax.tree.map(lambda x: x[1], two_iterations(keys)), two_iterations(keys[1:])
    alone = jax.tree.map(lambda x: x[0], alone)

    same_bits(beside.worlds, alone.worlds)
    if algo == "icsac":
        same_bits(beside.replay, alone.replay)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), beside.params, alone.params)
