"""The settings of the runs in this folder, and what makes two of them the same."""

import jax
import jax.numpy as jnp
import numpy as np

import goalward as gw
from goalward.run.checkpoint import Checkpoints
from goalward.run.directory import RunDirectory
from goalward.run.loop import Training
from goalward.run.member import Member
from goalward.run.program import Program, Programs
from goalward.run.state import first_state

# 140 iterations of 32 steps, evaluated after 0, 70 and 140 of them; every checkpoint is kept. Compiling takes longer
# than running: tests that keep to these settings find their program in the compilation cache.
SETTINGS = {
    "num_envs": 4,
    "rollout_length": 8,
    "batch_size": 16,
    "hidden_sizes": [16],
    "eval_episodes": 8,
    "num_evaluations": 2,
    "render_episodes": 0,
    "absolute_factor": 0,
    "keep_checkpoints": 9,
    "checkpoint_share": 1.0,
    "seeds": 8,
    "steps": 140 * 32,
}


def as_options(settings):
    """Returns settings as the words of `goalward train --set`."""
    return ["--set", *(f"{key}={str(value).lower()}" for key, value in settings.items())]


def same_bits(first, second):
    """Asserts that two trees hold the same bits, random keys included."""

    def plain(x):
        return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)

    assert jax.tree.structure(first) == jax.tree.structure(second)
    for (path, a), b in zip(jax.tree.leaves_with_path(first), jax.tree.leaves(second), strict=True):
        name = jax.tree_util.keystr(path)
        assert a.dtype == b.dtype, name
        assert plain(a).tobytes() == plain(b).tobytes(), name


def training_of(directory, reporter):
    """Returns the training of a run on one device, as it is made after all checks."""
    plan, env = directory.plan(), gw.make("toy/rooms")
    learner = plan.algo.bind(env, plan.num_iterations)
    program = Program(learner, plan.seed_numbers)
    return Training([Member(directory, plan, learner)], Programs(program, program), reporter)


def records_of(path):
    """Returns the lines of metrics.jsonl without the clock."""
    records = RunDirectory.open(path).read_records()
    assert all("elapsed" in record for record in records)
    return [{key: value for key, value in record.items() if key != "elapsed"} for record in records]


def final_state(path, env):
    """Returns everything in the newest checkpoint: parameters, optimisers, environments, keys, the best so far."""
    directory = RunDirectory.open(path)
    plan = directory.plan()
    learner = plan.algo.bind(env, plan.num_iterations)
    program = Program(learner, plan.seed_numbers)
    checkpoints = Checkpoints(directory.checkpoints)
    state, _ = checkpoints.restore(checkpoints.latest(), jax.eval_shape(lambda: first_state(program)))
    checkpoints.close()
    return state


def assert_same_run(path, other):
    assert records_of(path) == records_of(other)
    rooms = gw.make("toy/rooms")
    same_bits(final_state(path, rooms), final_state(other, rooms))
