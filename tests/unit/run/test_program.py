"""The compiled functions of a run."""

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

import goalward as gw
from goalward.algos.cppo import CPPOLearner
from goalward.evaluate.episodes import EpisodeResults
from goalward.run.program import Program, compiler_options


def make_program():
    env = gw.make("toy/rooms")
    learner = gw.CPPO(num_envs=4, rollout_length=8, batch_size=16, hidden_sizes=(8,)).resolve(env.spec).bind(env, 1)
    return Program(env, learner, range(3, 6))


@pytest.mark.parametrize(("backend", "graphs"), [("gpu", True), ("cpu", False)])
def test_a_gpu_runs_loops_and_conditions_by_itself(monkeypatch, backend, graphs):
    monkeypatch.setattr("jax.default_backend", lambda: backend)
    kinds = (compiler_options() or {}).get("xla_gpu_enable_command_buffer", "").split(",")

    assert {"WHILE", "CONDITIONAL"} <= set(kinds) if graphs else kinds == [""]


def test_every_evaluation_of_every_seed_has_episodes_of_its_own(monkeypatch):
    """But for greedy ones, which share those of the sampled ones beside them."""

    def keys_as_results(env, policy, key, num_episodes):
        half, other = jax.random.key_data(key).astype(jnp.float32)[:, None]
        return EpisodeResults(success=half, ret=other, length=half, metrics={})

    monkeypatch.setattr("goalward.run.program.run_episodes", keys_as_results)
    program = make_program()
    params = jnp.zeros(3)  # of nobody's interest here
    evaluations = [program.evaluate(params, index, 1) for index in range(3)]
    evaluations += [program.evaluate_absolute(params, 1), program.evaluate_fresh(params, 1, greedy=False)]
    keys = [pair for e in evaluations for pair in zip(e.win_rate.tolist(), e.ret.tolist(), strict=True)]

    assert len(set(keys)) == len(keys) == 5 * 3
    greedy = program.evaluate(params, 2, 1, greedy=True)
    assert greedy.win_rate.tolist() == evaluations[2].win_rate.tolist()


def test_a_program_is_freed_when_nobody_uses_it():
    """Its environment and its learner may hold large arrays, and a session may train many times."""
    program = make_program()
    jax.eval_shape(program.init)
    alive = weakref.ref(program)
    del program
    gc.collect()

    assert alive() is None


def test_garbage_is_looked_for_again_after_a_mistake_while_tracing(monkeypatch):
    def fail(self, key):
        raise TypeError("not this way")

    monkeypatch.setattr(CPPOLearner, "init", fail)
    with pytest.raises(TypeError, match="not this way"):
        jax.eval_shape(make_program().init)
    assert gc.isenabled()


@pytest.mark.parametrize("is_on", [True, False])
def test_garbage_is_not_looked_for_while_a_program_is_traced(monkeypatch, is_on):
    program, seen = make_program(), []
    states = jax.eval_shape(program.init)

    def watch(name):
        traced = getattr(CPPOLearner, name)

        def watched(self, *args):
            seen.append((name, gc.isenabled()))
            return traced(self, *args)

        monkeypatch.setattr(CPPOLearner, name, watched)

    for name in ("init", "iterate", "act"):
        watch(name)
    (gc.enable if is_on else gc.disable)()
    try:
        jax.eval_shape(make_program().init)
        jax.eval_shape(program.advance, states, jnp.int32(1))
        jax.eval_shape(lambda params: program.evaluate(params, 0, 1), states.params)
        assert gc.isenabled() == is_on
    finally:
        gc.enable()
    assert set(seen) == {("init", False), ("iterate", False), ("act", False)}
