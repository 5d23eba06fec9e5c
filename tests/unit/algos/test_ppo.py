"""PPO's parts put together: what its advantages see of the ends of episodes, and whom its updates leave out."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw

LENGTH, ENVS, AGENTS = 12, 6, 2
GAMMA = 0.9


class Countdown(gw.GoalEnv):
    """Counts its steps. Half of the episodes terminate after 3, the others are cut off after 5."""

    spec = gw.EnvSpec(
        name="countdown", obs_dim=2, goal_dim=1, action_space=gw.Discrete(2), max_steps=5, num_agents=AGENTS
    )

    def reset(self, key):
        return self.look((jnp.int32(0), jax.random.bernoulli(key)))

    def step(self, key, state, action):
        count, is_short = state
        return self.look((count + 1, is_short))

    def look(self, state):
        count, is_short = state
        over = is_short & (count == 3)
        return state, gw.TimeStep(
            obs=jnp.tile(jnp.stack([count, is_short]).astype(jnp.float32)[None], (AGENTS, 1)),
            achieved=jnp.zeros((AGENTS, 1)),
            goal=jnp.ones((AGENTS, 1)),
            terminated=over,
            success=over,
            reward=10.0 * count.astype(jnp.float32) + jnp.arange(AGENTS, dtype=jnp.float32),
            active=jnp.arange(AGENTS) < 2 - (count >= 2),
        )


class ValueOfCount(nn.Module):
    """V = 2 count + 0.5, with the slope as its parameter."""

    @nn.compact
    def __call__(self, obs, goal):
        slope = self.param("slope", lambda _: jnp.float32(2.0))
        return slope * obs[..., :1] + 0.5


class Logits(nn.Module):
    @nn.compact
    def __call__(self, obs, goal):
        return nn.Dense(2)(obs)


@pytest.fixture(scope="module")
def learner():
    settings = gw.PPO(
        num_envs=ENVS,
        rollout_length=LENGTH,
        batch_size=24,
        gamma=GAMMA,
        gae_lambda=1.0,
        networks=gw.ActorCritic(Logits(), ValueOfCount()),
    )
    return settings.bind(Countdown(), 1)


@pytest.fixture(scope="module")
def collected(learner):
    """A state, its rollout, the rows of it, and V of the states it ends in."""
    state = learner.init(jax.random.key(0))
    judge = partial(learner.value_of_step, state.params)
    worlds, rollout = learner.collect(state, jax.random.key(1), judge)
    return state, rollout, learner.steps_of(state.params, rollout), judge(worlds.episodes.step)


def returns(rollout):
    """Returns what every step was worth [T, E, N] by a loop over steps, V of their states, and how episodes ended."""
    count, is_short = np.moveaxis(np.asarray(rollout.obs[:, :, 0], int), -1, 0)
    worth, ends = np.zeros((LENGTH, ENVS, AGENTS)), set()
    for e, n in np.ndindex(ENVS, AGENTS):
        later = 2.0 * (count[-1, e] + 1) + 0.5  # the rollout ends, the episode goes on
        for t in reversed(range(LENGTH)):
            after = count[t, e] + 1
            if is_short[t, e] and after == 3:
                later = 0.0
                ends.add("terminated")
            elif after == 5:
                later = 2.0 * 5 + 0.5
                ends.add("truncated")
            later = 10.0 * after + n + GAMMA * later
            worth[t, e, n] = later
    return worth, 2.0 * count[..., None] + 0.5, ends


def test_a_truncated_episode_is_worth_what_it_was_cut_off_from_and_a_terminated_one_nothing(learner, collected):
    state, rollout, steps, last_value = collected
    adv, targets, _ = learner.advantages(state.params.critic, steps, rollout, last_value)
    expected, value, ends = returns(rollout)

    assert ends == {"terminated", "truncated"}
    np.testing.assert_allclose(targets.target.reshape(LENGTH, ENVS, AGENTS), expected, rtol=1e-5)
    np.testing.assert_allclose(adv.reshape(LENGTH, ENVS, AGENTS), expected - value, rtol=1e-5, atol=1e-4)


def test_an_iteration_takes_its_advantages_from_the_states_that_its_rollout_leads_to(learner):
    """The mean of A that `iterate` reports, against the rollout that its key collects."""
    state = learner.init(jax.random.key(0))
    _, key_collect, _ = jax.random.split(state.key, 3)
    _, rollout = learner.collect(state, key_collect)
    expected, value, _ = returns(rollout)
    _, metrics = learner.iterate(state)

    np.testing.assert_allclose(
        metrics["value/adv_mean"], (expected - value)[np.asarray(rollout.active)].mean(), rtol=1e-5
    )


def test_agents_without_influence_leave_the_policys_update_and_stay_in_the_value_functions(learner, collected):
    state, rollout, steps, last_value = collected
    adv, targets, _ = learner.advantages(state.params.critic, steps, rollout, last_value)
    inactive = ~steps.active
    assert 0 < inactive.sum() < inactive.size
    other_adv = jnp.where(inactive, adv + 100.0, adv)
    other_targets = targets._replace(target=jnp.where(inactive, targets.target + 100.0, targets.target))

    policies, values = [], []
    for a, t in ((adv, targets), (other_adv, other_targets)):
        policies.append(learner.policy_step(state, steps, a, jax.random.key(2))[0].params.policy)
        values.append(learner.value_step(state, steps, t)[1]["critic/loss"])

    jax.tree.map(np.testing.assert_array_equal, *policies)
    moved = jax.tree.map(lambda new, old: jnp.any(new != old), policies[0], state.params.policy)
    assert any(jax.tree.leaves(moved))
    assert values[1] > values[0]
