"""Seed 3 alone and seed 3 among eight draw the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_runs import SETTINGS, same_bits

import goalward as gw
from goalward.run.config import make_plan
from goalward.run.program import Program


@pytest.fixture(scope="module")
def programs():
    """The learner, and the programs of seed 3 alone and of seeds 0 to 7."""
    plan = make_plan(task="toy/rooms", preset="quick", settings=SETTINGS)
    env = gw.make("toy/rooms")
    learner = plan.algo.bind(env, plan.num_iterations)
    return learner, Program(learner, range(3, 4)), Program(learner, range(8))


@pytest.fixture(scope="module")
def first_states(programs):
    _, alone, among = programs
    return jax.tree.map(lambda x: x[0], alone.init()), jax.tree.map(lambda x: x[3], among.init())


def close(first, second, atol):
    for (path, a), b in zip(jax.tree.leaves_with_path(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, atol=atol, rtol=0, err_msg=jax.tree_util.keystr(path))


def starts_in_both(state, other):
    """Returns the starts to come that both states hold; a pool may be refilled early, for its neighbours' sake."""
    starts, others = state.worlds.starts, other.worlds.starts
    assert starts.num_used == others.num_used
    numbers = np.arange(starts.num_used, min(starts.num_drawn, others.num_drawn))
    assert len(numbers) > 0
    slots = numbers % starts.pool.elapsed.shape[0]
    return jax.tree.map(lambda x: x[slots], starts.pool)


def test_it_starts_in_the_same_state(first_states):
    alone, among = first_states

    same_bits(alone.key, among.key)
    same_bits(alone.worlds, among.worlds)
    close(alone.params, among.params, atol=1e-6)


def test_it_acts_the_same_in_the_same_episodes(programs):
    learner, one, many = programs
    collect = jax.jit(jax.vmap(lambda state: learner.collect(state, state.key)[1]))
    alone = jax.tree.map(lambda x: x[0], collect(one.init()))
    among = jax.tree.map(lambda x: x[3], collect(many.init()))

    for name in ("obs", "goal", "action_mask", "active", "action", "next_achieved", "reward", "terminated", "success"):
        same_bits(getattr(alone, name), getattr(among, name))
    close(alone.policy_outputs, among.policy_outputs, atol=1e-5)
    assert len(np.unique(alone.action)) > 1


def test_it_learns_the_same_for_two_iterations(programs):
    _, one, many = programs
    alone, metrics_alone = one.advance(one.init(), jnp.int32(2))
    among, metrics_among = many.advance(many.init(), jnp.int32(2))
    alone, among = jax.tree.map(lambda x: x[0], alone), jax.tree.map(lambda x: x[3], among)

    same_bits(alone.key, among.key)
    same_bits(alone.worlds.episodes, among.worlds.episodes)
    same_bits(starts_in_both(alone, among), starts_in_both(among, alone))
    close(alone.params, among.params, atol=1e-5)
    for name in metrics_alone:
        np.testing.assert_allclose(
            metrics_alone[name][:2, 0], metrics_among[name][:2, 3], atol=1e-4, rtol=1e-4, err_msg=name
        )


def test_seeds_differ_from_each_other(programs):
    _, _, many = programs
    keys = np.asarray(jax.random.key_data(many.init().key))

    assert len(np.unique(keys, axis=0)) == 8
