"""Parts that no file can hold: objects and modules of the caller's are asked for again, never replaced."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_runs import SETTINGS

import goalward as gw
from goalward.goals.toy import Position
from goalward.run.config import make_plan

SMALL = {name: SETTINGS[name] for name in ("num_envs", "rollout_length", "batch_size", "hidden_sizes")}
SHORT = {
    "steps": 32,
    "seeds": 1,
    "settings": {"num_evaluations": 1, "eval_episodes": 8, "render_episodes": 0, "absolute_factor": 0},
}


class OtherPosition(Position):
    """Has the name and the size of the built-in goal, and asks for something else."""

    def achieved(self, state):
        return -super().achieved(state)


class Net(nn.Module):
    num_outputs: int
    activation: str = "relu"

    @nn.compact
    def __call__(self, *inputs):
        hidden = getattr(nn, self.activation)(nn.Dense(8)(jnp.concatenate(inputs, axis=-1)))
        return nn.Dense(self.num_outputs)(hidden)


def with_networks(policy=4, phi=3, psi=3):
    networks = gw.Networks(policy=Net(policy), phi=Net(phi), psi=Net(psi))
    return gw.CPPO(num_envs=4, rollout_length=8, batch_size=16, networks=networks)


@pytest.fixture(scope="module")
def run_with_networks(tmp_path_factory):
    return gw.train("toy/rooms", with_networks(), out=tmp_path_factory.mktemp("modules") / "run", **SHORT)


def test_a_goal_object_is_asked_for_again(tmp_path):
    env = gw.make("toy/rooms")
    goal = OtherPosition(env)
    gw.train("toy/rooms", gw.CPPO(**SMALL), goal=goal, out=tmp_path / "run", **SHORT)
    with pytest.raises(gw.UserError, match="pass the object as env="):
        gw.load(tmp_path / "run")

    with pytest.raises(gw.UserError, match=r"The goal of the run came as an object of your own.* pass .* env="):
        gw.load(tmp_path / "run", env="toy/rooms")
    with pytest.raises(gw.UserError, match=r"a run whose goal was an object of your own.* pass it again as goal="):
        gw.train("toy/rooms", preset=tmp_path / "run" / "config.toml", out=tmp_path / "again")
    assert not (tmp_path / "again").exists()

    again = gw.load(tmp_path / "run", env=gw.make("toy/rooms", goal=goal))
    assert isinstance(again.learner.env.goal, OtherPosition)


def test_a_goal_object_is_checked(tmp_path):
    goal = OtherPosition(gw.make("toy/rooms"))
    goal.dim = 5
    with pytest.raises(gw.UserError, match=r"`achieved` as float32 of shape \(1, 5\); found float32 of shape \(1, 2\)"):
        gw.train("toy/rooms", gw.CPPO(**SMALL), goal=goal, out=tmp_path / "run", **SHORT)
    assert not (tmp_path / "run").exists()


def test_modules_are_asked_for_again(run_with_networks):
    with pytest.raises(gw.UserError, match="networks of your own, which no file holds; pass them again as algo="):
        gw.load(run_with_networks.path)
    with pytest.raises(gw.UserError, match="pass them again as algo="):
        gw.resume(run_with_networks.path)

    policy, trained = gw.load(run_with_networks.path, algo=with_networks()), run_with_networks.policies[0]
    obs, goal = jax.random.normal(jax.random.key(0), (64, 1, 18)), jnp.zeros((64, 1, 2))
    np.testing.assert_array_equal(policy.act(obs, goal), trained.act(obs, goal))


def test_modules_are_asked_for_again_by_a_preset(run_with_networks, tmp_path):
    preset = run_with_networks.path / "config.toml"
    for algo in ("cppo", gw.CPPO(**SMALL)):
        with pytest.raises(gw.UserError, match=r"a run with networks of your own.* pass them again as algo="):
            gw.train("toy/rooms", algo, preset=preset, out=tmp_path / "run")
    assert make_plan(task="toy/rooms", algo=with_networks(), preset=preset).run.steps == SHORT["steps"]
    assert not (tmp_path / "run").exists()


def test_what_is_no_part_of_a_run_is_refused(run_with_networks, tmp_path):
    for algo in ("cppo", 3, gw.CPPO):
        with pytest.raises(gw.UserError, match=r"Expected algo to be settings with networks, goalward\.CPPO"):
            gw.load(run_with_networks.path, algo=algo)
    with pytest.raises(gw.UserError, match="networks of your own, which no file holds"):
        gw.load(run_with_networks.path, algo=gw.CPPO(**SMALL))
    with pytest.raises(gw.UserError, match=r"Expected env to be an environment.* found 3\."):
        gw.load(run_with_networks.path, env=3, algo=with_networks())
    with pytest.raises(gw.UserError, match=r"Expected out to be the path of a directory; found 3\."):
        gw.train("toy/rooms", preset="quick", out=3)


def test_a_resumed_run_takes_modules_and_no_settings(run_with_networks):
    other = gw.CPPO(num_envs=8, clip=0.01, networks=with_networks().networks)
    resumed = gw.resume(run_with_networks.path, algo=other)
    assert resumed.policies[0].learner.config == run_with_networks.policies[0].learner.config


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ({"policy": 1}, r"policy network must return 4 numbers per agent; found the shape \(4, 1, 1\)"),
        ({"policy": 5}, r"policy network must return 4 numbers"),
        ({"psi": 1}, r"phi and psi must return .* one size; found \(4, 1, 3\) and \(4, 1, 1\)"),
    ],
)
def test_modules_that_return_something_else_are_refused(sizes, complaint):
    learner = with_networks(**sizes).bind(gw.make("toy/rooms"), 1)
    with pytest.raises(gw.UserError, match=complaint):
        learner.init(jax.random.key(0))


class Dropping(Net):
    @nn.compact
    def __call__(self, *inputs):
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(self.num_outputs)(jnp.concatenate(inputs, axis=-1)))


class Counting(Net):
    @nn.compact
    def __call__(self, *inputs):
        return nn.BatchNorm(use_running_average=False)(nn.Dense(self.num_outputs)(jnp.concatenate(inputs, axis=-1)))


class Pair(Net):
    def __call__(self, *inputs):
        return inputs[0], inputs[0]


class Whole(Net):
    def __call__(self, *inputs):
        return inputs[0].astype(jnp.int32)


class Lonely(Net):
    def __call__(self, first):
        return first


@pytest.mark.parametrize("name", ["policy", "phi"])
@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (Dropping(4), "with its parameters alone, no dropout; it raised InvalidRngError: "),
        (Counting(4), "must hold parameters only; found the collections batch_stats"),
        (Pair(4), "must return one array of floats; found tuple"),
        (Whole(4), "must return one array of floats; found int32"),
        (Lonely(4), r"inputs of the shapes \(4, 1, 18\), \(4, 1, \d\) .* it raised TypeError: "),
        (None, "must be a Flax module, an instance and not a class; found None"),
        (Net, "must be a Flax module, an instance and not a class; found <class"),
    ],
    ids=["dropout", "batch statistics", "tuple", "whole numbers", "signature", "none", "class"],
)
def test_modules_that_cannot_be_trained_are_refused_before_anything_is_written(tmp_path, name, module, complaint):
    networks = dataclasses.replace(with_networks().networks, **{name: module})
    algo = dataclasses.replace(with_networks(), networks=networks)
    with pytest.raises(gw.UserError, match=f"The {name} network .*{complaint}") as caught:
        gw.train("toy/rooms", algo, out=tmp_path / "run", **SHORT)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_an_environment_object_takes_no_goal_and_no_arguments(tmp_path):
    for extra in ({"goal": "position"}, {"reward": "dense"}, {"settings": {"env.size": 9}}):
        with pytest.raises(gw.UserError, match="An environment object has its goal, reward and arguments already"):
            gw.train(gw.make("toy/rooms"), preset="quick", out=tmp_path / "run", **extra)
    assert not (tmp_path / "run").exists()


def test_what_is_no_algorithm_is_refused():
    for algo in (gw.CPPO, 3, None):
        with pytest.raises(gw.UserError, match="Expected algo to be a name or settings"):
            make_plan(task="toy/rooms", algo=algo)


def test_values_that_are_missing_or_do_not_go_together_are_refused():
    with pytest.raises(gw.UserError, match="clip must have a value"):
        gw.CPPO(clip=None)
    with pytest.raises(gw.UserError, match="lr_end must not exceed"):
        gw.CPPO(lr_end=1.0)
    with pytest.raises(gw.UserError, match=r"networks must be goalward\.Networks"):
        gw.CPPO(networks="mine")
