"""The pool of starts: who gets which, nothing twice, and no more resets than episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.data.rollout import collect, open_worlds
from goalward.data.seeds import any_seed
from goalward.data.starts import first_starts, refill, take_starts
from goalward.envs.base import EnvSpec, TimeStep, start_episode

pytestmark = pytest.mark.usefixtures("strict_dtypes")

ENVS = 6
POOL = 4 * ENVS


class Ticket:
    """An episode shows the number drawn at its start and lasts as many steps as its last digit says, at least one."""

    spec = EnvSpec(name="test/ticket", obs_dim=1, goal_dim=1, action_space=gw.Discrete(2), max_steps=12)

    def reset(self, key):
        ticket = jax.random.randint(key, (), 0, 2**20)
        return (ticket, jnp.int32(0)), self.view(ticket, jnp.int32(0))

    def step(self, key, state, action):
        ticket, time = state
        return (ticket, time + 1), self.view(ticket, time + 1)

    def view(self, ticket, time):
        shown = ticket.astype(jnp.float32).reshape(1, 1)
        return TimeStep(obs=shown, achieved=shown, goal=shown, terminated=time >= ticket % 10, success=jnp.array(True))


def act(key, obs, goal, mask):
    action = jnp.zeros(obs.shape[:-1], jnp.int32)
    return obs, action, action


def tickets(key, numbers):
    """Returns what the starts of these numbers must show."""
    return [int(jax.random.randint(jax.random.fold_in(key, n), (), 0, 2**20)) for n in numbers]


def run(key, num_steps):
    key_start, key_run = jax.random.split(key)
    return collect(Ticket(), act, key_run, open_worlds(Ticket(), key_start, ENVS), num_steps)


@pytest.fixture(scope="module")
def rollout():
    """Returns the key of the starts, the environments and the rollout of one seed alone."""
    worlds, rollout = jax.jit(lambda key: run(key, 80))(jax.random.key(3))
    return jax.random.split(jax.random.key(3))[0], worlds, jax.tree.map(np.asarray, rollout)


def test_episodes_take_the_starts_in_the_order_of_their_numbers(rollout):
    key, worlds, rollout = rollout
    shown = rollout.obs[..., 0, 0]
    handed_out = list(shown[0])
    for t in range(79):
        handed_out += [shown[t + 1, e] for e in range(ENVS) if rollout.done[t, e]]
    handed_out += [worlds.episodes.step.obs[e, 0, 0] for e in range(ENVS) if rollout.done[79, e]]

    assert len(handed_out) > 3 * POOL
    assert handed_out == tickets(key, range(len(handed_out)))
    assert int(worlds.starts.num_used) == len(handed_out)


def test_no_start_is_used_twice(rollout):
    _, worlds, _ = rollout

    assert int(worlds.starts.num_reused) == 0
    assert int(worlds.starts.num_drawn) >= int(worlds.starts.num_used)


def test_resets_are_drawn_as_episodes_need_them(rollout):
    """As many are drawn as were used since the last draw: at most a pool more than the episodes."""
    _, worlds, _ = rollout

    assert int(worlds.starts.num_drawn) - int(worlds.starts.num_used) <= POOL


def test_a_seed_takes_the_same_starts_beside_others(rollout):
    _, worlds, alone = rollout
    keys = jnp.stack([jax.random.key(s) for s in range(5)])
    all_worlds, among = jax.jit(jax.vmap(lambda key: run(key, 80)))(keys)

    np.testing.assert_array_equal(among.obs[3], alone.obs)
    np.testing.assert_array_equal(all_worlds.episodes.step.obs[3], worlds.episodes.step.obs)
    np.testing.assert_array_equal(all_worlds.starts.num_reused, 0)
    np.testing.assert_array_equal(all_worlds.starts.num_used[3], worlds.starts.num_used)


def test_a_start_that_is_handed_out_before_it_is_drawn_is_counted():
    starts = first_starts(Ticket(), jax.random.key(0), ENVS)
    everyone = jnp.ones(ENVS, bool)
    for _ in range(POOL // ENVS + 1):
        starts, _ = take_starts(starts, everyone)  # without a refill

    assert int(starts.num_reused) == ENVS
    assert int(refill(Ticket(), starts).num_reused) == ENVS  # it stays on record


@pytest.mark.parametrize("number", [2**31 - 30, 2**32 - 30])
def test_counts_may_pass_the_largest_number(number):
    """After two billion episodes: a pool whose size divides no power of two, and counts that run over."""
    env, key, everyone = Ticket(), jax.random.key(0), jnp.ones(ENVS, bool)
    numbers = [(number + n) % 2**32 for n in range(10 * ENVS)]
    starts = first_starts(env, key, ENVS)
    pool = jax.vmap(lambda n: start_episode(env, jax.random.fold_in(key, n)))(jnp.asarray(numbers[:POOL], jnp.uint32))
    used = np.array([number, number + POOL], np.uint32).view(np.int32)
    starts = starts._replace(pool=pool, num_used=jnp.asarray(used[0]), num_drawn=jnp.asarray(used[1]))
    shown = []
    for _ in range(10):
        starts, fresh = jax.jit(lambda s: take_starts(refill(env, s), everyone))(starts)
        shown += [int(ticket) for ticket in fresh.state[0]]

    assert shown == tickets(key, numbers)
    assert int(starts.next_slot) == 10 * ENVS % POOL  # which does not run over
    assert int(starts.num_reused) == 0


def test_a_pool_that_is_full_enough_stays_as_it_is():
    starts = first_starts(Ticket(), jax.random.key(0), ENVS)
    for _ in range(POOL // ENVS - 1):
        starts, _ = take_starts(starts, jnp.ones(ENVS, bool))
    refilled = refill(Ticket(), starts)

    assert int(refilled.num_drawn) == POOL  # everyone could still begin an episode
    starts, _ = take_starts(refilled, jnp.arange(ENVS) == 2)
    assert int(refill(Ticket(), starts).num_drawn) == 2 * POOL - ENVS


def test_a_full_pool_beside_an_empty_one_loses_nothing():
    env = Ticket()
    keys = jnp.stack([jax.random.key(0), jax.random.key(1)])
    starts = jax.vmap(lambda key: first_starts(env, key, ENVS))(keys)
    wanted = jnp.stack([jnp.zeros(ENVS, bool), jnp.ones(ENVS, bool)])
    for _ in range(POOL // ENVS):
        starts, _ = jax.vmap(take_starts)(starts, wanted)
    starts = jax.vmap(lambda s: refill(env, s))(starts)

    assert starts.num_drawn.tolist() == [POOL, 2 * POOL - ENVS]
    shown = [int(ticket) for ticket in starts.pool.state[0][0]]
    assert shown == tickets(keys[0], range(POOL))


def test_a_refill_is_not_computed_while_no_seed_needs_one():
    """Under vmap the condition must stay one value: a batched one would turn into a selection."""
    env = Ticket()
    starts = jax.vmap(lambda key: first_starts(env, key, ENVS))(jnp.stack([jax.random.key(s) for s in range(3)]))
    text = str(jax.make_jaxpr(jax.vmap(lambda s: refill(env, s)))(starts))

    assert "cond[" in text


def test_any_seed_is_one_value_for_a_whole_batch():
    flags = jnp.array([[False, False], [True, False]])

    assert jax.vmap(any_seed)(flags[0]).tolist() == [False, False]
    assert jax.vmap(any_seed)(flags[1]).tolist() == [True, True]
    assert jax.vmap(jax.vmap(any_seed))(flags).tolist() == [[True, True], [True, True]]
