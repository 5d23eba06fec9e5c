"""smax: observation, mask and moves of mixed units by loops, pictures, and arguments."""

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs.base import advance_episode, start_episode
from goalward.envs.draw import AGENT_COLOURS
from goalward.envs.imports import quiet_import
from goalward.envs.uniform import uniform_policy

with quiet_import():
    jaxmarl = pytest.importorskip("jaxmarl")
    from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO, Scenario

pytestmark = pytest.mark.usefixtures("suite_arithmetic")

UP, RIGHT, DOWN, LEFT, STOP = range(5)
OTHER, OWN = 13, 10  # numbers that describe another unit, and the observer


@pytest.fixture(scope="module")
def env():
    return gw.make("smax/smacv2_5_units")


@pytest.fixture(scope="module")
def battles(env):
    """Episodes [battle, time, ...] with random units; ally i begins with action i, and then all act at random."""
    policy = uniform_policy(env)

    def fight(key):
        first = start_episode(env, key)

        def one_step(episode, key):
            key_act, key_step = jax.random.split(key)
            shown = episode.step
            drawn = policy(key_act, shown.obs, shown.goal, shown.action_mask)
            action = jnp.where(episode.elapsed == 0, jnp.arange(5), drawn)
            return (advance_episode(env, key_step, episode, action),) * 2

        _, history = jax.lax.scan(one_step, first, jax.random.split(key, 20))
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, history)

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(fight))(jax.random.split(jax.random.key(3), 256)))


def at(battles, *where):
    return jax.tree.map(lambda x: x[where], battles)


def marines(place, health=(45,) * 6, attacks=(0,) * 6):
    """Returns a state of three against three."""
    env = gw.make("smax/3m")
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(env.reset, jax.random.key(0))[0])
    return env, state._replace(
        position=np.array(place, np.float32),
        health=np.array(health, np.float32),
        last_attack=np.array(attacks, np.int32),
    )


def seen_by(env, state, ally):
    """Returns the observation of one ally, written as loops over the units."""
    suite, types = env.suite, state.unit_type
    table = {name: np.asarray(getattr(suite, f"unit_type_{name}")) for name in ("health", "sight_ranges")}
    cooldowns = np.asarray(suite.unit_type_weapon_cooldowns)
    num_allies, num_units = env.num_allies, len(state.health)

    def own(unit):
        return state.health[unit] / table["health"][types[unit]], np.clip(
            state.cooldown[unit] / cooldowns[types[unit]], 0, 1
        )

    blocks = []
    for unit in range(num_units):
        if unit == ally:
            continue
        block = np.zeros(OTHER)
        way = state.position[unit] - state.position[ally]
        sight = table["sight_ranges"][types[ally]]
        if state.health[unit] > 0 and state.health[ally] > 0 and np.linalg.norm(way) < sight:
            targets = num_units - num_allies if unit < num_allies else num_allies
            block[0], block[6] = own(unit)
            block[1:3] = way / sight
            block[3:5] = state.last_move[unit]
            block[5] = state.last_attack[unit] / (5 + targets - 1)
            block[7 + types[unit]] = 1
        blocks.append(block)
    mine = np.zeros(OWN)
    if state.health[ally] > 0:
        mine[0], mine[3] = own(ally)
        mine[1:3] = state.position[ally] / 32
        mine[4 + types[ally]] = 1
    return np.concatenate([*blocks, mine])


def allowed_to(env, state, ally):
    mask = np.arange(5 + env.num_enemies) == STOP
    if state.health[ally] > 0:
        mask[:5] = True
        reach = np.asarray(env.suite.unit_type_attack_ranges)[state.unit_type[ally]]
        for enemy in range(env.num_enemies):
            unit = env.num_allies + enemy
            gap = np.linalg.norm(state.position[unit] - state.position[ally])
            mask[5 + enemy] = state.health[unit] > 0 and gap < reach
    return mask


def test_observation_and_mask_of_mixed_units(env, battles):
    for battle in range(12):
        for time in (0, 1, 12, 20):
            episode = at(battles, battle, time)
            for ally in range(5):
                expected = seen_by(env, episode.state, ally)
                np.testing.assert_allclose(episode.step.obs[ally], expected, atol=1e-5)
                allowed = allowed_to(env, episode.state, ally)
                np.testing.assert_array_equal(episode.step.action_mask[ally], allowed)
    checked = at(battles, slice(12), 20).state
    assert not checked.alive.all()
    assert checked.cooldown.max() > 0
    assert checked.last_attack[:, :5].max() >= 5 <= checked.last_attack[:, 5:].max()


def test_only_a_unit_off_the_map_observes_numbers_beyond_one(battles):
    off_map = (np.abs(battles.state.position[:, :, :5] - 16) > 16).any(-1)
    assert np.abs(battles.step.obs[~off_map]).max() <= 1.0
    assert np.abs(battles.step.obs).max() < 1.15


def test_smacv2_units_may_spawn_off_the_map_and_die_in_the_first_step(battles):
    """Pitfall: before anybody has done anything there are dead, rewards and inactive agents."""
    first, second = at(battles, slice(None), 0), at(battles, slice(None), 1)
    # The fastest unit walks 0.26 in a tick: from closer than that it can step back onto the map and live.
    lost = ((first.state.position < -0.27) | (first.state.position > 32.27)).any(-1)
    assert first.state.alive.all()
    assert first.step.active.all()
    assert 0.03 < lost.any(-1).mean() < 0.2
    assert not second.state.alive[lost].any()
    np.testing.assert_array_equal(second.step.active, second.state.alive[:, :5])
    assert (second.step.reward[lost[:, 5:].any(-1)] >= 0.2 - 1e-5).all()


def test_the_four_moves_go_up_right_down_and_left(env, battles):
    first, second = at(battles, slice(None), 0), at(battles, slice(None), 1)
    before, after = first.state.position[:, :5], second.state.position[:, :5]
    gaps = np.linalg.norm(before[:, :, None] - first.state.position[:, None], axis=-1)
    nobody_near = (np.sort(gaps, axis=-1)[..., 1] > 5) & second.state.alive[:, :5]  # so that nobody pushes
    speed = np.asarray(env.suite.unit_type_velocities)[first.state.unit_type[:, :5], None] / 2  # half a second
    for action, way in ((UP, (0, 1)), (RIGHT, (1, 0)), (DOWN, (0, -1)), (LEFT, (-1, 0)), (STOP, (0, 0))):
        expected = before[:, action] + speed[:, action] * way
        free = nobody_near[:, action] & (np.abs(expected - 16) < 15.5).all(-1)
        assert free.sum() > 10
        np.testing.assert_allclose(after[free, action], expected[free], atol=1e-4)


def test_smacv2_teams_have_the_same_random_types(battles):
    types = at(battles, slice(None), 0).state.unit_type
    np.testing.assert_array_equal(types[:, :5], types[:, 5:])
    assert np.unique(types).tolist() == [0, 1, 2, 3, 4, 5]
    assert len(np.unique(types, axis=0)) > 200


@pytest.mark.parametrize("name", sorted(MAP_NAME_TO_SCENARIO))
def test_every_scenario_of_the_suite_can_be_made(name):
    spec = gw.make("smax/3m", scenario=name).spec
    known = MAP_NAME_TO_SCENARIO[name]
    assert spec.name == f"smax/{name}"
    assert spec.num_agents == known.num_allies
    assert spec.obs_dim == OTHER * (known.num_allies + known.num_enemies - 1) + OWN
    assert spec.action_space == gw.Discrete(5 + known.num_enemies)


def test_a_scenario_that_was_registered_with_the_suite_works_too(monkeypatch):
    monkeypatch.setitem(MAP_NAME_TO_SCENARIO, "1m_vs_2m", Scenario(jnp.zeros(3, jnp.uint8), 1, 2, False, False))
    env = gw.make("smax/3m", scenario="1m_vs_2m", goal="zero_health")
    assert (env.spec.name, env.spec.num_agents, env.spec.goal_dim) == ("smax/1m_vs_2m", 1, 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"scenario": "5m_v_6m"}, r"Unknown scenario of smax '5m_v_6m'\. Did you mean 5m_vs_6m"),
        ({"scenario": 3}, r"Unknown scenario of smax '3'\. "),
        ({"max_steps": 0}, r"max_steps of smax/3m must be a whole number of at least 1; found 0\."),
        ({"max_steps": 10.5}, r"max_steps of smax/3m must be a whole number of at least 1; found 10\.5\."),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(arguments, sentence):
    with pytest.raises(gw.UserError, match=sentence):
        gw.make("smax/3m", **arguments)


def test_the_picture_shows_teams_health_and_the_dead():
    place = [(6, 26), (6, 16), (6, 6), (26, 26), (26, 16), (26, 6)]
    env, state = marines(place, health=(45, 10, 0, 45, 10, 0))
    image = env.render(state)
    assert image.dtype == np.uint8
    assert image.shape == (256, 256, 3)

    def colour(unit, right=0.0):
        x, y = place[unit]
        return tuple(image[int((32 - y) * 8), int((x + right) * 8)])

    assert colour(0) == colour(1) == AGENT_COLOURS[0]
    assert colour(3) == colour(4) == AGENT_COLOURS[1]
    assert colour(0, right=0.35) == AGENT_COLOURS[0]
    assert colour(1, right=0.35) != AGENT_COLOURS[0]  # hardly any health is left
    assert colour(2) == colour(5)
    assert colour(2) not in AGENT_COLOURS


def test_the_picture_shows_who_shoots_at_whom():
    place = [(12, 16), (4, 4), (4, 28), (15.5, 16), (28, 4), (28, 28)]
    env, peace = marines(place)
    _, war = marines(place, attacks=(5, 5, 0, 5 + 2, 0, 0))
    # The ally in front hits enemy 0, which hits back: an enemy counts its targets from the last ally to the first.
    assert list(env._shots(war)) == [(0, 3), (3, 0)]
    assert list(env._shots(peace)) == []
    assert not np.array_equal(env.render(war), env.render(peace))


def test_pictures_of_units_off_the_map_can_be_drawn(env, battles):
    off_map = np.argwhere((battles.state.position[:, 0] < -0.5).any(-1).any(-1))[0, 0]
    assert env.render(at(battles, off_map, 0).state).shape == (256, 256, 3)


def test_importing_the_suite_prints_nothing_and_leaves_the_streams_alone(capfd):
    """Pitfall: the package prints when imported, and sets `sys.stdout` to the terminal while it imports Brax."""
    before = sys.stdout, sys.stderr
    with quiet_import():
        try:
            importlib.reload(importlib.import_module("jaxmarl.environments.mabrax.mabrax_env"))
        except ImportError:
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        importlib.reload(jaxmarl.environments)
    assert (sys.stdout, sys.stderr) == before
    assert capfd.readouterr() == ("", "")
