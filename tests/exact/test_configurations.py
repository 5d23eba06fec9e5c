"""Configurations in one program: each seed of each learns as if its configuration were trained alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_runs import SETTINGS, same_bits

import goalward as gw
from goalward.run.config import make_plan
from goalward.run.program import Program, configurations_of

# The values of three configurations, by setting; no two of them have one in common.
ON_POLICY = {
    "actor_lr": (2.5e-4, 1e-3, 3e-3),
    "critic_lr": (2.5e-4, 3e-3, 1e-3),
    "lr_end": (1e-7, 1e-5, 0.0),
    "max_grad_norm": (0.5, 0.1, 2.0),
    "adam_epsilon": (1e-5, 1e-6, 1e-4),
    "clip": (0.2, 0.1, 0.4),
    "entropy_coef": (0.01, 0.05, 0.0),
    "adv_std_floor": (0.01, 0.1, 1.0),
}
CASES = {
    "cppo": ("toy/rooms", {}, ON_POLICY | {"gamma": (0.99, 0.9999, 0.5), "logsumexp_coef": (0.1, 0.5, 0.0)}),
    "ppo": (
        "toy/routing",
        {"num_epochs": 2, "lr_schedule": "linear"},
        ON_POLICY | {"gamma": (0.99, 0.9999, 0.5), "gae_lambda": (0.95, 0.5, 1.0), "reward_scale": (1.0, 3.0, 0.5)},
    ),
    "icsac": (
        "toy/routing",
        {"replay_size": 24, "lr_schedule": "constant"},
        {
            "actor_lr": (2.5e-4, 1e-3, 3e-3),
            "alpha_lr": (2.5e-4, 1e-3, 1e-2),
            "initial_alpha": (1.0, 0.1, 0.5),
            "target_entropy": (0.5, 0.3, 1.0),
            "gumbel_temperature": (1.0, 0.5, 2.0),
            "gamma": (0.99, 0.9999, 0.5),
        },
    ),
    "cdqn": ("toy/rooms", {"replay_size": 24}, {"epsilon_start": (1.0, 0.5, 0.2), "epsilon_end": (0.05, 0.1, 0.0)}),
}


def after_two_iterations(program):
    first = jax.tree.map(jnp.copy, program.init())
    states, metrics = program.advance(program.init(), jnp.int32(2))
    return first, states, {name: values[:2] for name, values in metrics.items()}


@pytest.mark.parametrize("algo", CASES)
def test_a_seed_of_a_configuration_learns_as_if_it_were_trained_alone(algo):
    task, fixed, varied = CASES[algo]
    plan = make_plan(task=task, algo=algo, preset="quick", settings=SETTINGS | {"steps": 160} | fixed)
    env = gw.make(task)
    configs = [dataclasses.replace(plan.algo, **{name: values[i] for name, values in varied.items()}) for i in range(3)]
    learners = [config.bind(env, plan.num_iterations) for config in configs]
    configurations = configurations_of(configs, env, plan.num_iterations)
    together = after_two_iterations(Program(learners[0], range(3, 5), configurations=configurations))
    first, state, metrics = after_two_iterations(Program(learners[2], range(4, 5)))
    first_beside, state_beside = (jax.tree.map(lambda x: x[-1:], tree) for tree in together[:2])

    assert set(configurations.values) == set(varied)
    same_bits(first_beside.key, first.key)
    same_bits(first_beside.worlds, first.worlds)
    same_bits(state_beside.key, state.key)
    same_bits(state_beside.worlds.episodes, state.worlds.episodes)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), state_beside.params, state.params)
    for name, values in metrics.items():
        np.testing.assert_allclose(together[2][name][:, -1:], values, atol=1e-4, rtol=1e-4, err_msg=name)
    # In the middle as well: seed 3 of the second configuration is the third row.
    _, state, _ = after_two_iterations(Program(learners[1], range(3, 4)))
    beside = jax.tree.map(lambda x: x[2:3], together[1].params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), beside, state.params)
    # Seed 4 of the first configuration, which began in the same state, has learned something else.
    assert not np.allclose(together[2]["critic/loss"][1, 1], together[2]["critic/loss"][1, -1], atol=1e-3)


def test_configurations_without_a_difference_are_rows_all_the_same():
    env = gw.make("toy/rooms")
    config = gw.CPPO(num_envs=4, rollout_length=8, batch_size=16, hidden_sizes=(8,)).resolve(env.spec)
    program = Program(config.bind(env, 1), range(1), configurations=configurations_of([config, config], env, 1))
    keys = jax.random.key_data(program.init().key)

    assert program.num_rows == 2
    np.testing.assert_array_equal(keys[0], keys[1])
