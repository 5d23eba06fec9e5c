"""The compiled functions of a run."""

import gc
import threading
import weakref
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.algos.cppo import CPPOLearner
from goalward.envs import registry
from goalward.evaluate.episodes import EpisodeResults
from goalward.run.devices import make_mesh
from goalward.run.program import Program, compiler_options


def make_program(env=None, mesh=None, seeds=range(3, 6)):
    env = env or gw.make("toy/rooms")
    learner = gw.CPPO(num_envs=4, rollout_length=8, batch_size=16, hidden_sizes=(8,)).resolve(env.spec).bind(env, 1)
    return Program(learner, seeds, mesh)


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
def test_garbage_is_not_looked_for_while_a_suite_is_imported_and_programs_are_made(monkeypatch, is_on):
    program, seen = make_program(), []

    def watch(name):
        traced = getattr(CPPOLearner, name)

        def watched(self, *args):
            seen.append((name, gc.isenabled()))
            return traced(self, *args)

        monkeypatch.setattr(CPPOLearner, name, watched)

    def load_suite(*args, load=registry._load_suite):
        seen.append(("import", gc.isenabled()))
        return load(*args)

    def lower(states, count):
        seen.append(("lower", gc.isenabled()))
        return advance.lower(states, count)

    for name in ("init", "iterate", "act"):
        watch(name)
    monkeypatch.setattr(registry, "_load_suite", load_suite)
    advance = program.advance
    program.advance = SimpleNamespace(lower=lower)
    (gc.enable if is_on else gc.disable)()
    try:
        gw.make("toy/rooms")
        program.compile(1)
        assert gc.isenabled() == is_on
    finally:
        gc.enable()
    assert set(seen) == {(name, False) for name in ("import", "init", "iterate", "lower", "act")}


@pytest.mark.parametrize("devices", [1, 2, 4])  # without a mesh; seeds on two; environments of each on two as well
@pytest.mark.parametrize("is_new", [True, False])
def test_what_is_compiled_before_a_run_begins_is_found_when_it_is_called(stages_of_programs, devices, is_new):
    program = make_program(mesh=make_mesh(2, 4, devices), seeds=range(2))
    state = None if is_new else program.init()
    del stages_of_programs[:]
    advance = program.compile(2, is_new=is_new)
    named = {"advance", "evaluate", "init"} if is_new else {"advance", "evaluate"}
    assert {name for stage, name in stages_of_programs if stage == "backend_compile"} == named

    del stages_of_programs[:]
    state, _ = advance(program.init() if is_new else state, np.int32(1))
    program.evaluate(state.params, 1, 2)
    assert stages_of_programs == []
    program.evaluate(state.params, 1, 2, greedy=True)
    assert ("backend_compile", "evaluate") in stages_of_programs


@pytest.mark.parametrize("name", ["_init_jit", "_evaluate_jit", "advance"])
def test_a_program_that_cannot_be_compiled_is_told(monkeypatch, name):
    def fail():
        raise ValueError("no such machine")

    program = make_program()
    shapes = program.shapes()
    monkeypatch.setattr(program, "shapes", lambda: shapes)
    monkeypatch.setattr(program, name, SimpleNamespace(lower=lambda *_, **__: SimpleNamespace(compile=fail)))
    with pytest.raises(ValueError, match="no such machine"):
        program.compile(1)


def test_a_program_is_compiled_while_the_next_ones_are_lowered(monkeypatch):
    program, last_is_lowered, in_time = make_program(), threading.Event(), []
    shapes, evaluate = program.shapes(), program._evaluate_jit

    def lower(*args, **options):
        last_is_lowered.set()
        return evaluate.lower(*args, **options)

    first = SimpleNamespace(compile=lambda: in_time.append(last_is_lowered.wait(timeout=60.0)))
    monkeypatch.setattr(program, "shapes", lambda: shapes)
    monkeypatch.setattr(program, "_init_jit", SimpleNamespace(lower=lambda keys: first))
    monkeypatch.setattr(program, "_evaluate_jit", SimpleNamespace(lower=lower))
    program.compile(1)

    assert in_time == [True]
