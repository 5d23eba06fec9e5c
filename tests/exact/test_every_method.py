"""Every method: a run that is stopped and resumed is bit-equal to one that is not, and seeds do not see each other."""

import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_runs import SETTINGS as EXACT
from exact_runs import final_state, records_of, same_bits

import goalward as gw
from goalward.run.config import make_plan
from goalward.run.program import Program

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


def test_cdqn_does_not_claim_to_sample(tmp_path, goalward):
    task, settings = CASES["cdqn"]
    gw.train(task, "cdqn", preset="quick", settings=SETTINGS | settings, out=tmp_path / "run")
    code, out, _ = goalward("evaluate", tmp_path / "run")

    assert code == 0
    assert "greedy actions" in out


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_a_replay_is_written_in_place(num_seeds):
    env = gw.make("toy/rooms")
    config = gw.CDQN(num_envs=64, rollout_length=4, batch_size=16, replay_size=2048, hidden_sizes=(8,))
    learner = config.bind(env, 1)
    program = Program(learner, range(num_seeds))
    compiled = program.advance.lower(jax.eval_shape(program.init), jnp.int32(1)).compile()

    assert compiled.memory_analysis().temp_size_in_bytes < num_seeds * learner.replay_bytes / 4


@pytest.mark.parametrize("algo", ["icsac", "ppo"])
def test_a_seed_learns_the_same_alone_and_beside_another(algo):
    task, settings = CASES[algo]
    plan = make_plan(task=task, algo=algo, preset="quick", settings=SETTINGS | settings)
    env = gw.make(task)
    learner = plan.algo.bind(env, plan.num_iterations)

    def after_two_iterations(seeds):
        program = Program(learner, seeds)
        states, _ = program.advance(program.init(), jnp.int32(2))
        return jax.tree.map(lambda x: x[-1], states)

    beside, alone = after_two_iterations(range(2)), after_two_iterations(range(1, 2))

    same_bits(beside.worlds, alone.worlds)
    if algo == "icsac":
        same_bits(beside.replay, alone.replay)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), beside.params, alone.params)
