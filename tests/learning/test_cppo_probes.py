"""CPPO learns the probe environments from goals alone, and nothing once positives are shuffled."""

import jax
import numpy as np
import pytest
from probes import Aim, Choice, Corridor

import goalward as gw
from goalward.algos.contrastive import ContrastiveConfig

NUM_ITERATIONS = 100
NUM_COUNTED = 10  # iterations at the end whose episodes count: 2560 steps of each seed


def learned_win_rates(env, method=gw.CPPO, *, num_seeds=3, **settings):
    """Returns [num_seeds], the win rates of the policy at the end of training, all seeds in one program."""
    config = method(
        num_envs=32,
        rollout_length=8,
        batch_size=64,
        hidden_sizes=(32,),
        actor_lr=2e-3,
        critic_lr=3e-3,
        **({"repr_dim": 8} if issubclass(method, ContrastiveConfig) else {}),
        **settings,
    )
    learner = config.bind(env, NUM_ITERATIONS)

    def one_seed(key):
        def one_iteration(state, _):
            state, metrics = learner.iterate(state)
            return state, (metrics["rollout/wins"], metrics["rollout/episodes"])

        _, (wins, episodes) = jax.lax.scan(one_iteration, learner.init(key), length=NUM_ITERATIONS)
        return wins[-NUM_COUNTED:].sum() / episodes[-NUM_COUNTED:].sum()

    # These programs run for a second and would compile for ten with all optimisations.
    train = jax.jit(jax.vmap(one_seed))
    win_rates = np.asarray(train(jax.random.split(jax.random.key(0), num_seeds)))
    print(f"{method.name} on {env.spec.name}, {env.spec.num_agents} agents, {settings}: {win_rates.round(3)}")
    return win_rates


@pytest.mark.parametrize("num_agents", [1, 2])
def test_each_agent_learns_which_action_leads_to_its_goal(num_agents):
    # A uniform policy wins 1/8 of the episodes alone and 1/64 in a team of two.
    assert learned_win_rates(Choice(num_agents)).min() > 0.9


def test_continuous_actions_learn_to_hit_the_target():
    assert Aim.uniform_win_rate < 0.1
    assert learned_win_rates(Aim()).min() > 0.6


def test_a_way_of_several_steps_is_learned():
    assert learned_win_rates(Corridor()).min() > 0.9


def test_shuffled_positives_teach_nothing():
    # Without information a policy still settles on arbitrary cells: seeds vary, their mean does not exceed chance.
    env = Choice()
    win_rates = learned_win_rates(env, num_seeds=8, positives="shuffled")
    assert win_rates.mean() < env.uniform_win_rate + 0.05
