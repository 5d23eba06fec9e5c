"""Environments that are traced once for all programs of a run."""

import copy
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs import traced
from goalward.envs.base import can_render, can_survey
from goalward.envs.traced import TracedOnce
from goalward.run.program import Program


class Counted(gw.GoalEnv):
    """Counts how often its code runs."""

    spec = gw.EnvSpec(name="counted", obs_dim=1, goal_dim=1, action_space=gw.Box((-1.0,), (1.0,)), max_steps=4)

    def __init__(self):
        self.calls = []

    def reset(self, key):
        self.calls.append("reset")
        return self.show(jax.random.uniform(key, (1, 1)))

    def step(self, key, state, action):
        self.calls.append("step")
        return self.show(state + action)

    def show(self, state):
        never = jnp.bool_(False)
        return state, gw.TimeStep(obs=state, achieved=state, goal=state, terminated=never, success=never)


def programs_of(env):
    """Returns the texts of what makes the first state, trains and evaluates."""
    learner = gw.CPPO(num_envs=2, rollout_length=4, batch_size=4, hidden_sizes=(8,)).resolve(env.spec).bind(env, 1)
    program = Program(learner, range(2))
    keys = jax.random.split(jax.random.key(0), 2)
    state = program.shapes()
    return [
        program._init_jit.lower(keys).as_text(),
        program.advance.lower(state, np.int32(1)).as_text(),
        program._evaluate_jit.lower(state.params, keys, num_episodes=2, greedy=False).as_text(),
    ]


def test_its_code_runs_once_for_all_programs():
    alone, once = Counted(), Counted()
    programs_of(alone)
    programs_of(TracedOnce(once))

    assert sorted(once.calls) == ["reset", "step"]
    assert len(alone.calls) > 4


def test_programs_are_the_same_as_without_it_where_nothing_is_computed_in_vain():
    env = gw.make("toy/swarm")

    assert programs_of(TracedOnce(env)) == programs_of(env)


@pytest.mark.parametrize("task", ["toy/rooms", pytest.param("smax/3m", marks=pytest.mark.slow)])
def test_a_run_computes_the_same_bits_as_without_it(task):
    def begin(env):
        learner = gw.CPPO(num_envs=2, rollout_length=4, batch_size=4, hidden_sizes=(8,)).resolve(env.spec).bind(env, 2)
        program = Program(learner, range(2))
        states, metrics = program.advance(program.init(), np.int32(2))
        return states, metrics, program.evaluate(states.params, 0, 2)

    env = gw.make(task)
    with jax.numpy_rank_promotion("allow"):  # as the suites do
        alone, once = (jax.tree.leaves(begin(one)) for one in (env, TracedOnce(env)))
    for expected, found in zip(alone, once, strict=True):
        if jnp.issubdtype(expected.dtype, jax.dtypes.prng_key):
            expected, found = jax.random.key_data(expected), jax.random.key_data(found)
        np.testing.assert_array_equal(found, expected)


class Wasteful(Counted):
    """Computes what nobody asks for at every step, in a loop that does something else too, and says how it stands."""

    def step(self, key, state, action):
        def turn(_, carry):
            position, angle = carry
            return position + 0.5 * action, jnp.arctan2(angle, position)

        position, angle = jax.lax.fori_loop(0, 2, turn, (state, state))
        jax.debug.callback(self.calls.append, position[0, 0])
        jnp.tan(angle).sum()
        return self.show(position)


def test_what_is_computed_in_vain_is_left_out():
    alone, once = (programs_of(env)[1] for env in (Wasteful(), TracedOnce(Wasteful())))

    assert "atan2" in alone
    assert "atan2" not in once


def test_a_jax_that_cannot_leave_it_out_computes_it(monkeypatch):
    monkeypatch.setattr(traced, "dce_jaxpr", None)

    assert "atan2" in programs_of(TracedOnce(Wasteful()))[1]


def test_what_an_environment_says_besides_is_still_said():
    env = Wasteful()
    once = TracedOnce(env)
    state, _ = once.reset(key=jax.random.key(0))
    after, step = once.step(key=jax.random.key(1), state=state, action=jnp.full((1, 1), 0.25))
    jax.effects_barrier()

    np.testing.assert_allclose(after, state + 0.25)
    np.testing.assert_array_equal(step.achieved, after)
    assert env.calls == ["reset", float(after[0, 0])]


def test_a_changed_environment_is_traced_anew():
    env = Counted()
    before = TracedOnce(env)
    programs_of(before)
    first = list(env.calls)
    programs_of(TracedOnce(env))
    assert env.calls == first + first

    programs_of(TracedOnce(before))
    assert env.calls == 3 * first


@dataclass  # compared by value, so that it has no hash
class Reset:
    env: Counted

    def __call__(self, key):
        return self.env.reset(key)


class Slotted:
    __slots__ = ("env",)  # and none for weak references

    def __init__(self, env):
        self.env = env

    def __call__(self, key):
        return self.env.reset(key)


@pytest.mark.parametrize("kind", [Reset, Slotted])
def test_whatever_can_be_called_may_be_its_reset(kind):
    env, other = Counted(), Counted()
    env.reset = kind(other)
    state, _ = TracedOnce(env).reset(jax.random.key(0))

    assert state.shape == (1, 1)
    assert other.calls == ["reset"]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_it_can_be_copied(copied):
    once = TracedOnce(Counted())
    once.reset(jax.random.key(0))
    other = copied(once)

    assert other.spec == once.spec
    assert jax.eval_shape(other.reset, jax.random.key(0))[0].shape == (1, 1)


def test_everything_else_is_the_environments_own():
    env = gw.make("toy/rooms", size=11)
    once = TracedOnce(env)

    assert (once.spec, once.size) == (env.spec, 11)
    assert can_render(once)
    assert can_survey(once)
    with pytest.raises(AttributeError, match="speed"):
        once.speed  # noqa: B018
    assert not can_render(TracedOnce(Counted()))
