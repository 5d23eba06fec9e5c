"""Rewards of smax: episodes by hand, and what whole battles sum to."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs.imports import quiet_import

with quiet_import():
    pytest.importorskip("jaxmarl")
    from goalward.rewards.smax import DeathTriggered, Dense, Sparse

pytestmark = pytest.mark.usefixtures("suite_arithmetic")

REWARDS = (Dense, DeathTriggered, Sparse)


@pytest.fixture(scope="module")
def env(smax_3m):
    return smax_3m


@pytest.fixture(scope="module")
def battles(env, smax_battles):
    """For each reward [battle, N], the sum over a battle until it ended; and [battle], whether it was won."""
    states, terminated, success = jax.tree.map(np.asarray, smax_battles)
    # A step counts if the battle had not ended before it.
    counts = ~terminated[:, :-1, None]
    before, after = (jax.tree.map(lambda x, part=part: x[:, part], states) for part in (slice(40), slice(1, 41)))
    action = jnp.zeros((*counts.shape[:2], 3), jnp.int32)
    pay = jax.jit(jax.vmap(jax.vmap(lambda *step: [reward(env)(*step) for reward in REWARDS])))
    paid = zip(REWARDS, pay(before, action, after), strict=True)
    sums = {reward: (counts * np.asarray(amount)).sum(1) for reward, amount in paid}
    return sums, success[np.arange(len(success)), terminated.argmax(1)]


def blank(env):
    """Returns a state of zeros: marines without health."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(env.reset, jax.random.key(0))[0])


def rewards_by_hand(env, reward, healths):
    """Returns [T, N], the rewards along an episode that is given by the healths of its units."""
    states = [blank(env)._replace(health=jnp.array(health, jnp.float32)) for health in healths]
    nothing = jnp.zeros(env.num_allies, jnp.int32)
    rate = reward(env)
    return np.array([rate(a, nothing, b) for a, b in itertools.pairwise(states)])


# Marines have 45 points. Allies 0 to 2 and then enemies 0 to 2.
WON = [
    (45, 45, 45, 45, 45, 45),
    (45, 45, 9, 36, 45, 45),  # 9 lost
    (45, 45, 0, 0, 45, 36),  # 36 and 9 lost, enemy 0 and ally 2 dead
    (45, 36, 0, 0, 45, 36),  # nothing lost
    (18, 0, 0, 0, 0, 0),  # 45 and 36 lost, the others dead: won
]
LOST = [(9, 9, 0, 45, 9, 0), (9, 0, 0, 45, 0, 0), (0, 0, 0, 36, 0, 0)]
DRAWN = [(9, 0, 0, 9, 0, 0), (0, 0, 0, 0, 0, 0)]


@pytest.mark.parametrize(
    ("reward", "healths", "expected"),
    [
        (Dense, WON, [9 / 135, 45 / 135, 0, 81 / 135 + 1]),
        (Dense, LOST, [9 / 135, 9 / 135]),
        (Dense, DRAWN, [9 / 135]),
        (DeathTriggered, WON, [0, 1 / 3, 0, 2 / 3 + 1]),
        (DeathTriggered, LOST, [1 / 3, 0]),
        (DeathTriggered, DRAWN, [1 / 3]),
        (Sparse, WON, [0, 0, 0, 1]),
        (Sparse, LOST, [0, 0]),
        (Sparse, DRAWN, [0]),
    ],
)
def test_an_episode_by_hand_pays_every_ally_the_same(env, reward, healths, expected):
    found = rewards_by_hand(env, reward, healths)
    np.testing.assert_allclose(found, np.repeat(np.array(expected)[:, None], 3, axis=1), atol=1e-6)
    assert found.dtype == np.float32


def test_the_dense_reward_counts_shares_of_each_units_own_health():
    env = gw.make("smax/6h_vs_8z")
    types = jnp.array([5] * 6 + [3] * 8, jnp.uint8)
    whole = blank(env)._replace(unit_type=types, health=jnp.array([80.0] * 6 + [150.0] * 8))
    hurt = whole._replace(health=whole.health.at[6].add(-30.0).at[0].add(-40.0))
    np.testing.assert_allclose(Dense(env)(whole, jnp.zeros(6, jnp.int32), hurt), np.full(6, 30 / 150 / 8), atol=1e-7)


def test_a_won_battle_sums_to_two_under_dense_and_so_damage_received_costs_nothing(battles):
    """Pitfall of the paper: its text subtracts the damage received, the environment does not."""
    sums, won = battles
    assert 20 < won.sum() < len(won) - 20
    np.testing.assert_allclose(sums[Dense][won], 2.0, atol=1e-5)
    assert (sums[Dense][~won] <= 1.0 + 1e-5).all()


def test_a_won_battle_sums_to_two_under_death_triggered_and_to_one_under_sparse(battles):
    sums, won = battles
    np.testing.assert_allclose(sums[DeathTriggered][won], 2.0, atol=1e-5)
    np.testing.assert_array_equal(sums[Sparse], np.repeat(won[:, None], 3, axis=1))


def test_a_reward_of_at_least_one_is_no_win(env):
    """Pitfall: `reward >= 1` as the test of a win fails in a draw, and under any other scale of the reward."""
    everybody_dies = [(45, 45, 45, 45, 45, 45), (0, 0, 0, 0, 0, 0)]
    assert rewards_by_hand(env, Dense, everybody_dies).min() >= 1.0
    assert not env.is_won(blank(env))


@pytest.mark.parametrize("name", ["dense", "death_triggered", "sparse"])
def test_a_reward_is_chosen_by_name(name):
    env = gw.make("smax/3m", reward=name)
    assert env.reward.name == env.spec.reward_name == name
