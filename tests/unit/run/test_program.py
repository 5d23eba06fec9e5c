"""The compiled functions of a run."""

import gc
import weakref

import jax

import goalward as gw
from goalward.run.program import Program


def test_a_program_is_freed_when_nobody_uses_it():
    """Its environment and its learner may hold large arrays, and a session may train many times."""
    env = gw.make("toy/rooms")
    learner = gw.CPPO(num_envs=4, rollout_length=8, batch_size=16, hidden_sizes=(8,)).resolve(env.spec).bind(env, 1)
    program = Program(env, learner, range(1))
    jax.eval_shape(program.init)
    alive = weakref.ref(program)
    del program
    gc.collect()

    assert alive() is None
