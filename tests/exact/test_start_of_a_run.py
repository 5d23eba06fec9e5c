"""What happens before the first iteration: how often code is traced and compiled, and for which environments."""

import copy

import jax
import jax.numpy as jnp
import pytest
from exact_runs import SETTINGS

import goalward as gw
from goalward.run.load import evaluate_run
from goalward.run.loop import Training

SHORT = {name: SETTINGS[name] for name in ("num_envs", "rollout_length", "batch_size", "hidden_sizes")}
SHORT |= {"eval_episodes": 4, "num_evaluations": 1, "render_episodes": 0, "absolute_factor": 0, "seeds": 2}


class Line(gw.GoalEnv):
    """Counts how often its code runs, and pays a reward that can be changed."""

    spec = gw.EnvSpec(name="line", obs_dim=1, goal_dim=1, action_space=gw.Box((-1.0,), (1.0,)), max_steps=4)

    def __init__(self):
        self.wind = 1.0
        self.calls = []

    def reset(self, key):
        self.calls.append("reset")
        return self.show({"place": jnp.zeros(1, jnp.bfloat16), "speed": self.speed(key)})

    def speed(self, key):
        return jax.random.uniform(key, dtype=jnp.bfloat16)

    def step(self, key, state, action):
        self.calls.append("step")
        return self.show(state | {"place": state["place"] * state["speed"]})

    def show(self, state):
        never, place = jnp.bool_(False), state["place"].astype(jnp.float32)[None]
        reward = jnp.full(1, self.wind)
        return state, gw.TimeStep(
            obs=place, achieved=place, goal=place + 1.0, reward=reward, terminated=never, success=never
        )


class ConstantLine(Line):
    """Keeps a Python number in its state, which leaves the type of what it is multiplied by alone."""

    def speed(self, key):
        return 0.5


@pytest.fixture
def compiled(stages_of_programs):
    """Returns a function that returns the names of the programs that were compiled since it was last called."""

    def names():
        found = sorted(name for stage, name in stages_of_programs if stage == "backend_compile")
        del stages_of_programs[:]
        return found

    return names


@pytest.mark.parametrize("devices", [1, 2])
def test_everything_is_traced_and_compiled_once(tmp_path, monkeypatch, compiled, devices):
    env, save = Line(), Training._save

    def stop(training, state):
        save(training, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "_save", stop)
    # These trace it as well, from states of their own.
    monkeypatch.setattr("goalward.run.train.check_env", lambda env: None)
    monkeypatch.setattr("goalward.run.solvers._calls_lapack", lambda env: False)
    with pytest.raises(KeyboardInterrupt):
        gw.train(env, "cppo", out=tmp_path / "run", devices=devices, steps=64, settings=SHORT)
    assert sorted(env.calls) == ["reset", "step"]
    assert compiled() == ["advance", "evaluate", "init"]

    del env.calls[:]
    monkeypatch.setattr(Training, "_save", save)
    gw.resume(tmp_path / "run", env=env, devices=devices)
    assert sorted(env.calls) == ["reset", "step"]
    assert compiled() == ["advance", "evaluate", "evaluate"]  # the last of them greedy

    gw.resume(tmp_path / "run", env=env, devices=devices)
    assert compiled() == ["evaluate"]  # nothing is left but to measure the last policy once more


def test_an_environment_that_was_changed_is_another_one(tmp_path):
    env, runs, returns = ConstantLine(), [], []
    for wind in (1.0, 100.0):
        env.wind = wind
        runs.append(gw.train(env, "cppo", out=tmp_path / str(wind), devices=1, steps=64, settings=SHORT))
        returns.append({record["return"] for record in runs[-1].records})

    assert returns == [{4.0}, {400.0}]
    found = [evaluate_run(run.path, env=env)["return_per_seed"] for run in runs]
    assert found == [[400.0, 400.0]] * 2


def test_a_policy_can_be_copied(tmp_path):
    run = gw.train("toy/rooms", out=tmp_path / "run", devices=1, steps=64, settings=SHORT)
    policy = copy.deepcopy(run.policies[0])
    _, step = gw.make("toy/rooms").reset(jax.random.key(0))

    assert jnp.array_equal(
        policy.act(step.obs, step.goal, step.action_mask), run.policies[0].act(step.obs, step.goal, step.action_mask)
    )
