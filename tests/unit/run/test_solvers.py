"""Environments that solve linear systems are kept off several devices of a CPU where JAX would wait for ever."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib.version
import pytest

import goalward as gw
from goalward.run.devices import make_mesh
from goalward.run.solvers import without_endless_waits

MAY_WAIT = jaxlib.version.__version__.startswith("0.10.")  # what is installed, whatever tests say of it below


class Solving(gw.GoalEnv):
    """Solves while an episode begins."""

    spec = gw.EnvSpec(name="solving", obs_dim=1, goal_dim=1, action_space=gw.Discrete(2), max_steps=4)

    def reset(self, key):
        x = jax.random.normal(key, (16, 16))
        inverse = jax.scipy.linalg.solve(x @ x.T + 16 * jnp.eye(16), jnp.eye(16), assume_a="pos")
        return self.show(inverse[:1, :1])

    def step(self, key, state, action):
        return self.show(state)

    def show(self, state):
        never = jnp.bool_(False)
        return state, gw.TimeStep(obs=state, achieved=state, goal=state + 1.0, terminated=never, success=never)


class Stepping(Solving):
    """Solves while it steps and not before."""

    def reset(self, key):
        return self.show(jnp.ones((1, 1)))

    def step(self, key, state, action):
        return self.show(jnp.linalg.inv(state + 1.0))


@pytest.fixture(autouse=True)
def version(monkeypatch):
    """The JAX that waits, and nothing said of devices or threads."""
    monkeypatch.setattr("jaxlib.version.__version__", "0.10.2")
    monkeypatch.setattr("goalward.run.solvers.num_cores", lambda: 2)
    for name in ("GOALWARD_DEVICES", "PJRT_NPROC", "NPROC"):
        monkeypatch.delenv(name, raising=False)


def mesh_of(count):
    return make_mesh(count, 8, count)


@pytest.mark.parametrize("env", [Solving(), Stepping()])
def test_they_train_on_one_device_and_say_why(env):
    said = []
    assert without_endless_waits(mesh_of(8), env, None, said.append) is None
    assert said == [
        "One device: jaxlib 0.10.2 may wait for ever where 8 devices of a CPU solve linear systems at once, as "
        f"{env.spec.name} does."
    ]


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_more_devices_are_refused_where_they_were_asked_for(monkeypatch, by):
    if by == "variable":
        monkeypatch.setenv("GOALWARD_DEVICES", "8")
    with pytest.raises(
        gw.UserError, match=r"8 devices of a CPU .* as solving does\. Use one device in each process \(--devices 1\)"
    ):
        without_endless_waits(mesh_of(8), Solving(), 8 if by == "argument" else None, print)


def test_where_nobody_waits_devices_stay(monkeypatch):
    whole = mesh_of(8)

    assert without_endless_waits(None, Solving(), None, pytest.fail) is None
    assert without_endless_waits(whole, gw.make("toy/rooms"), None, pytest.fail) is whole
    half = mesh_of(4)  # of eight, which have as many threads
    assert without_endless_waits(half, Solving(), None, pytest.fail) is half
    with monkeypatch.context() as patch:
        patch.setenv("NPROC", "8")
        patch.setenv("PJRT_NPROC", "9")
        assert without_endless_waits(whole, Solving(), None, pytest.fail) is whole
    monkeypatch.setattr("jaxlib.version.__version__", "0.11.2")
    assert without_endless_waits(whole, Solving(), 8, pytest.fail) is whole


def test_a_run_of_several_seeds_comes_to_its_end(tmp_path):
    settings = ["num_envs=64", "hidden_sizes=[8]", "num_evaluations=1", "eval_episodes=64", "render_episodes=0"]
    command = [sys.executable, "-m", "goalward", "train", "test_solvers:Solving", "--preset", "quick"]
    # Without what tests say of JAX: with programs that are not optimised it does not wait.
    environment = {"PYTHONPATH": str(Path(__file__).parent), "HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    environment |= {"JAX_NUM_CPU_DEVICES": "2", "PJRT_NPROC": "2"}  # on any machine
    answer = subprocess.run(
        [*command, "--seeds", "2", "--steps", "4096", "--out", "run", "--set", *settings],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )

    assert "One device: jaxlib" in answer.stdout or not MAY_WAIT
    assert "Done in" in answer.stdout
