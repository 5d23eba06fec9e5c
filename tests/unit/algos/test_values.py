"""V of every method, as it is shown: against a loop over actions, for observations of any leading shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw

TASKS = {"cppo": "toy/rooms", "icsac": "toy/rooms", "cdqn": "toy/rooms", "ppo": "toy/rooms", "csac": "toy/maze"}
SMALL = {"num_envs": 4, "rollout_length": 4, "batch_size": 4, "hidden_sizes": (8,)}


@pytest.fixture(params=TASKS)
def trained(request):
    """A learner of each kind with random parameters, and 3 x 2 observations with their goals and masks."""
    config = {"cppo": gw.CPPO, "icsac": gw.ICSAC, "cdqn": gw.CDQN, "ppo": gw.PPO, "csac": gw.CSAC}[request.param]
    replay = {} if request.param in ("cppo", "ppo") else {"replay_size": 8}
    env = gw.make(TASKS[request.param])
    learner = config(**SMALL, **replay, norm_obs=True, policy_last_scale=1.0).bind(env, 1)
    _, step = jax.vmap(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), (3, 2)))
    return request.param, learner, learner.init(jax.random.key(0)).params, step


@pytest.mark.parametrize("trained", ["cppo", "icsac", "cdqn"], indirect=True)
def test_it_is_the_mean_or_the_best_of_q_over_the_allowed_actions(trained):
    name, learner, params, step = trained
    found = np.asarray(learner.value(params, step.obs, step.goal, step.action_mask))
    seen = learner.actor.observe(params.obs_stats, step.obs)

    def q(action):
        features = jax.nn.one_hot(jnp.full(seen.shape[:-1], action), 4)
        return np.asarray(learner.critic.q_value(params.critic, seen, features, step.goal))

    table = np.stack([q(action) for action in range(4)], axis=-1)
    mask = np.asarray(step.action_mask)
    if name == "cdqn":
        expected = np.where(mask, table, -np.inf).max(-1)
    else:
        network = params.policy if name == "cppo" else params.policy.network
        logits = np.asarray(learner.actor.outputs(network, params.obs_stats, step.obs, step.goal))
        weights = np.exp(logits) * mask
        expected = (table * weights).sum(-1) / weights.sum(-1)

    assert found.shape == (3, 2, 1)
    assert not mask.all()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_it_depends_on_the_goal_and_is_the_same_each_time(trained):
    _, learner, params, step = trained
    found, again, elsewhere = (
        np.asarray(learner.value(params, step.obs, goal, step.action_mask))
        for goal in (step.goal, step.goal, 0.5 * step.goal - 0.2)
    )

    assert found.shape == step.obs.shape[:-1]
    np.testing.assert_array_equal(found, again)
    assert np.all(found != elsewhere)
