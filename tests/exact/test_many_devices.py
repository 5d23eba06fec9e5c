"""Eight devices and one: the same draws, and what is learned from them differs by rounding alone."""

import re
import shutil

import jax
import numpy as np
import pytest
from exact_runs import SETTINGS as EXACT
from exact_runs import final_state, records_of, same_bits

import goalward as gw
from goalward.run.config import make_plan
from goalward.run.devices import make_mesh
from goalward.run.program import Program

SETTINGS = EXACT | {"num_envs": 8, "steps": 4 * 64}
# algorithm, further settings, seeds, devices: (by seeds, by environments)
CASES = {
    "seeds": ("cppo", {}, 8, (8, 1)),
    "seeds and environments": ("cppo", {"norm_obs": True}, 2, (2, 4)),
    "a reward": ("ppo", {}, 2, (2, 2)),
    "a replay": ("cdqn", {"replay_size": 24}, 2, (2, 2)),
}


def after_two_iterations(algo, settings, num_seeds, devices):
    plan = make_plan(task="toy/rooms", algo=algo, preset="quick", settings=SETTINGS | settings)
    env = gw.make("toy/rooms")
    learner = plan.algo.bind(env, plan.num_iterations)
    program = Program(learner, range(num_seeds), mesh_of(devices))
    advance = program.advance.lower(program.init(), np.int32(2)).compile()
    state, metrics = advance(program.init(), np.int32(2))
    evaluation = program.evaluate(state.params, 1, 8)
    return state, {name: np.asarray(values)[:2] for name, values in metrics.items()}, evaluation, advance


def mesh_of(shape):
    """Returns a mesh of this shape, None for one device."""
    by_seeds, by_envs = shape
    mesh = make_mesh(by_seeds, by_envs, by_seeds * by_envs)
    assert mesh is None or tuple(mesh.shape.values()) == shape
    return mesh


@pytest.fixture(scope="module", params=CASES)
def runs(request):
    algo, settings, num_seeds, devices = CASES[request.param]
    one = after_two_iterations(algo, settings, num_seeds, (1, 1))
    many = after_two_iterations(algo, settings, num_seeds, devices)
    return one, many, devices


def test_they_draw_the_same_and_learn_the_same(runs):
    (one, metrics, evaluation, _), (many, other_metrics, other_evaluation, _), _ = runs

    same_bits(one.key, many.key)
    same_bits(one.worlds.episodes, many.worlds.episodes)
    same_bits(one.worlds.starts.num_used, many.worlds.starts.num_used)
    if hasattr(one, "replay"):
        same_bits(one.replay, many.replay)
        assert np.asarray(one.replay.memory.obs).any()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=0), one.params, many.params)
    for name, values in metrics.items():
        if name.startswith("rollout/"):
            np.testing.assert_array_equal(values, other_metrics[name], err_msg=name)
    np.testing.assert_array_equal(evaluation.length, other_evaluation.length)


def test_every_device_has_its_share(runs):
    _, (state, _, _, _), (by_seeds, by_envs) = runs
    num_seeds = state.key.shape[0]

    for leaf in jax.tree.leaves(state.params):
        assert len(leaf.addressable_shards) == by_seeds * by_envs
        assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {num_seeds // by_seeds}


def test_devices_exchange_rollouts_alone(runs):
    """Seeds exchange nothing but the metrics of a call, [64, S], at its end; gradient steps nothing at all."""
    _, (state, _, _, advance), (_, by_envs) = runs
    exchanged = re.findall(
        r"= (.*?) (?:all|collective)-[a-z-]+\(.*?(?:op_name=\"(.*?)\"|$)", advance.as_text(), re.MULTILINE
    )
    between_seeds = f"[64,{state.key.shape[0]}]"

    assert exchanged
    if by_envs == 1:
        assert all(between_seeds in result for result, _ in exchanged)
    else:  # observations [T, E, 1, D], each device having made those of its own environments
        whole = r"f32\[8,(1,)?8,1,18\]"
        places = [place for result, place in exchanged if re.match(whole, result)]
        # Behind the loop that makes them, not within it; newer versions of JAX name the loop itself.
        assert len(places) == 1
        assert re.search(r"/shard_map(/vmap\(\))?/(sharding_constraint|while)$", places[0]), places
    assert not [place for _, place in exchanged if "transpose(jvp" in place]


def test_a_run_stays_on_the_device_that_was_made_the_default(tmp_path):
    chosen = jax.devices()[3]
    with jax.default_device(chosen):
        run = gw.train("toy/rooms", preset="quick", settings=SETTINGS | {"seeds": 2}, out=tmp_path / "run")
        found = {device for leaf in jax.tree.leaves(run.policies[1].params) for device in leaf.devices()}

    assert found == {chosen}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A run on eight devices with a film and everything else."""
    path = tmp_path_factory.mktemp("sharded") / "run"
    settings = SETTINGS | {"seeds": 4, "render_episodes": 1, "absolute_factor": 1}
    return gw.train("toy/rooms", preset="quick", settings=settings, devices=8, out=path)


def test_its_policies_and_pictures_are_those_of_any_run(sharded, goalward):
    _, step = gw.make("toy/rooms").reset(jax.random.key(0))
    loaded = gw.load(sharded.path, seed=2)

    np.testing.assert_array_equal(
        sharded.policies[2].act(step.obs, step.goal, step.action_mask),
        loaded.act(step.obs, step.goal, step.action_mask),
    )
    same_bits(sharded.policies[2].params, loaded.params)
    assert all(len(leaf.devices()) == 1 for leaf in jax.tree.leaves(sharded.policies[0].params))
    assert (sharded.path / "media" / "episodes.gif").is_file()
    code, out, _ = goalward("evaluate", sharded.path, "--episodes", "4")
    assert code == 0
    assert "4 episodes per seed" in out


@pytest.mark.parametrize("devices", [1, 8])
def test_it_goes_on_on_any_number_of_devices(sharded, tmp_path, goalward, devices):
    path = shutil.copytree(sharded.path, tmp_path / "run")
    shutil.rmtree(path / "checkpoints" / "4")
    code, out, _ = goalward("train", "--resume", path, "--devices", devices)

    assert code == 0
    assert ("devices (cpu), " in out) == (devices > 1)
    env = gw.make("toy/rooms")
    resumed, whole = final_state(path, env), final_state(sharded.path, env)
    same_bits(resumed.learner.key, whole.learner.key)
    same_bits(resumed.learner.worlds.episodes, whole.learner.worlds.episodes)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), resumed.learner.params, whole.learner.params)
    if devices == 8:
        assert records_of(path) == records_of(sharded.path)
        same_bits(resumed, whole)
