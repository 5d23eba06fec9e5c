"""Which methods there are, and what each of them can be trained on (the paper's Table 1)."""

import jax
import jax.numpy as jnp
import pytest

import goalward as gw
from goalward.algos.base import ALGORITHMS, algorithm_class
from goalward.run.memory import require_memory, require_memory_of
from goalward.run.program import Program

FITTING = {
    "toy/rooms": {"cppo", "ppo", "icsac", "cdqn"},
    "toy/routing": {"cppo", "ppo", "icsac"},
    "toy/maze": {"cppo", "ppo", "csac"},
    "toy/swarm": {"cppo", "ppo", "csac"},
}


@pytest.mark.parametrize("task", FITTING)
def test_a_method_fits_where_it_exists(task):
    spec = gw.make(task).spec

    assert {name for name, method in ALGORITHMS.items() if method.fits(spec)} == FITTING[task]


@pytest.mark.parametrize(
    ("task", "algo", "sentence"),
    [
        (
            "toy/swarm",
            "cdqn",
            "cdqn trains discrete actions of one agent; toy/swarm has continuous actions of 3 agents. "
            "Methods that fit: cppo, ppo, csac.",
        ),
        (
            "toy/routing",
            "cdqn",
            "cdqn trains discrete actions of one agent; toy/routing has discrete actions of 4 agents. "
            "Methods that fit: cppo, ppo, icsac.",
        ),
        (
            "toy/rooms",
            "csac",
            "csac trains continuous actions of one agent or a team; toy/rooms has discrete actions of one agent. "
            "Methods that fit: cppo, ppo, icsac, cdqn.",
        ),
    ],
)
def test_a_combination_that_does_not_exist_is_refused(goalward, tmp_path, task, algo, sentence):
    code, out, err = goalward("train", task, "--algo", algo, "--preset", "quick", "--out", tmp_path / "run")

    assert (code, out, err) == (2, "", f"goalward: {sentence}\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_is_a_settings_class_of_the_package(name):
    settings = algorithm_class(name)

    assert settings.name == name
    assert getattr(gw, settings.__name__) is settings
    assert settings.__name__ == name.upper()


def test_ppo_asks_for_a_reward():
    class Silent(gw.GoalEnv):
        spec = gw.EnvSpec(name="silent", obs_dim=1, goal_dim=1, action_space=gw.Discrete(2), max_steps=3)

        def reset(self, key):
            return self.look(jnp.zeros((1, 1)))

        def step(self, key, state, action):
            return self.look(state + action[:, None].astype(jnp.float32))

        def look(self, state):
            there = state[0, 0] > 2
            return state, gw.TimeStep(obs=state, achieved=state, goal=state + 1, terminated=there, success=there)

    with pytest.raises(
        gw.UserError,
        match=r"ppo learns from rewards, and the time steps of silent have none\..*without one: cppo, icsac, cdqn",
    ):
        gw.PPO().bind(Silent(), 1)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (
            lambda: gw.CSAC(replay_size=1000),
            "multiple of rollout_length 128; found 1000, the nearest that is one is 1024",
        ),
        (
            lambda: gw.CDQN(epsilon_start=0.1, epsilon_end=0.2),
            "epsilon_end must not exceed epsilon_start 0.1; found 0.2",
        ),
        (lambda: gw.CDQN(epsilon_decay=1.5), "epsilon_decay must be between 0 and 1; found 1.5"),
        (lambda: gw.ICSAC(gumbel_temperature=0.0), "gumbel_temperature must be above 0; found 0"),
        (lambda: gw.CSAC(alpha_lr=1e-8), "lr_end must not exceed alpha_lr 1e-08"),
        (lambda: gw.CSAC(replay_ratio=1e30), "replay_ratio times the steps of an iteration, 65536, must be below"),
        (lambda: gw.CDQN(batch_size=10**12), "batch_size must be at most 65536, since the critic compares all pairs"),
        (lambda: gw.CDQN(replay_size=2**63), "replay_size must be below 2^31; found 9223372036854775808"),
        (lambda: gw.CPPO(num_value_samples=2**63), "num_value_samples must be between 1 and 2,147,483,647"),
        (lambda: gw.CPPO(repr_dim=2**63), "repr_dim must be between 1 and 2,147,483,647"),
        (lambda: gw.PPO(hidden_sizes=(2**63,)), "hidden_sizes must all be at least 1 and below 2^31"),
        (lambda: gw.CSAC(min_log_std=-1e20), "min_log_std must be between -20 and 20"),
        (lambda: gw.PPO(initial_log_std=1.0 - 1e-12), "at least 0.001 from both; found 0.999999"),
        (
            lambda: gw.PPO(reward_scale=1e300),
            "reward_scale must have a size that single precision can hold, 1e-37 to 1e+38",
        ),
        (lambda: gw.ICSAC(gumbel_temperature=1e-300), "gumbel_temperature must have a size"),
        (lambda: gw.PPO(policy_last_scale=1e200), "policy_last_scale must have a size"),
        (lambda: gw.PPO(networks="mine"), "networks must be goalward.ActorCritic"),
        (lambda: gw.PPO(gae_lambda=1.1), "gae_lambda must be between 0 and 1; found 1.1"),
    ],
)
def test_values_that_make_no_sense_are_refused(make, complaint):
    with pytest.raises(gw.UserError) as caught:
        make()
    assert complaint in str(caught.value)


def test_a_replay_that_cannot_fit_is_refused_with_its_size_and_the_field_to_change(goalward, tmp_path):
    settings = ["--set", "replay_size=2_000_000_000"]
    code, out, err = goalward(
        "train", "toy/rooms", "--algo", "cdqn", "--preset", "quick", "--out", tmp_path / "run", *settings
    )

    assert (code, out) == (2, "")
    assert "The replay would keep" in err
    assert "(replay_size)" in err
    assert not (tmp_path / "run").exists()


def test_where_training_hardly_fits_the_replay_is_among_what_can_be_changed(monkeypatch):
    env = gw.make("toy/rooms")
    learner = gw.CDQN(num_envs=4, rollout_length=8, batch_size=16, replay_size=800).bind(env, 1)
    monkeypatch.setattr("goalward.run.memory.device_memory", lambda: learner.replay_bytes + 1)

    with pytest.raises(gw.UserError, match=r"Training would keep .* shorter replay \(replay_size\)"):
        require_memory(Program(learner, range(1)), num_seeds=1, num_episodes=1)


def test_advice_about_memory_names_what_would_help(monkeypatch):
    """Minibatches and rollouts are parts of the program, not of what is kept from one iteration to the next."""
    env = gw.make("toy/maze")
    sizes = {"num_envs": 4, "rollout_length": 8, "batch_size": 16, "hidden_sizes": (8,)}
    without_replay = gw.PPO(**sizes).bind(env, 1)
    with_replay = gw.CSAC(**sizes, replay_size=32).bind(env, 1)
    program = jax.jit(lambda x: x).lower(1.0).compile()

    def advice(check, learner, *args, **kwargs):
        monkeypatch.setattr("goalward.run.memory.device_memory", lambda: learner.replay_bytes)
        with pytest.raises(
            gw.UserError, match=r"use fewer seeds, environments \(num_envs\).* or smaller networks"
        ) as error:
            check(*args, **kwargs)
        return [word for word in ("replay_size", "rollout_length", "batch_size") if word in str(error.value)]

    for learner, replay in ((without_replay, []), (with_replay, ["replay_size"])):
        assert advice(require_memory, learner, Program(learner, range(1)), num_seeds=1, num_episodes=1) == replay
        whole = advice(require_memory_of, learner, program, [], learner, num_devices=10**9)
        assert whole == [*replay, "rollout_length", "batch_size"]


def test_a_method_is_refused_in_python_too():
    with pytest.raises(gw.UserError, match="csac trains continuous actions"):
        gw.CSAC().bind(gw.make("toy/rooms"), 1)


def test_the_memory_of_a_replay_is_counted():
    env = gw.make("toy/maze")
    learner = gw.CSAC(num_envs=4, rollout_length=8, batch_size=16, replay_size=32, hidden_sizes=(8,)).bind(env, 1)
    per_step = 4 * env.spec.obs_dim + 4 * 2 + 2 + 1 + 4 * env.spec.goal_dim + 1  # with mask, activity and end

    assert learner.replay_bytes == 32 * 4 * per_step + 4
    replay = jax.eval_shape(learner.init, jax.random.key(0)).replay
    assert sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(replay)) == learner.replay_bytes
