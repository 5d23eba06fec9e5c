"""Generalised advantages and the value loss against loops in NumPy."""

import jax
import numpy as np
import pytest

from goalward.losses.returns import generalised_advantages, value_loss

pytestmark = pytest.mark.usefixtures("strict_dtypes")

STEPS, ENVS, AGENTS = 12, 4, 2
GAMMA, LAMBDA = 0.9, 0.8


@pytest.fixture(scope="module")
def rollout():
    """Episodes that terminate, that are cut off, that last one step, and that the rollout ends."""
    rng = np.random.default_rng(0)
    reward, value, next_value = rng.normal(size=(3, STEPS, ENVS, AGENTS)).astype(np.float32)
    terminated, truncated = np.zeros((2, STEPS, ENVS), bool)
    terminated[4, 0] = terminated[5, 0] = terminated[11, 1] = True
    truncated[3, 1] = truncated[7, 1] = truncated[0, 2] = truncated[11, 3] = True
    # Within an episode the state after a step is the one that is acted in next.
    goes_on = ~(terminated | truncated)[:-1]
    next_value[:-1][goes_on] = value[1:][goes_on]
    return reward, value, next_value, terminated, truncated


def slow_advantages(reward, value, next_value, terminated, truncated, gae_lambda):
    """Returns the weighted mean of all n-step advantages, by the definition of GAE and not by its recursion."""
    adv = np.zeros(reward.shape)
    for t, e, n in np.ndindex(*reward.shape):
        estimates, earned, discount, last = [], 0.0, 1.0, t
        while True:
            earned += discount * float(reward[last, e, n])
            discount *= GAMMA
            rest = 0.0 if terminated[last, e] else float(next_value[last, e, n])
            estimates.append(earned + discount * rest - float(value[t, e, n]))
            if terminated[last, e] or truncated[last, e] or last == STEPS - 1:
                break
            last += 1
        weights = [(1 - gae_lambda) * gae_lambda**k for k in range(len(estimates))]
        weights[-1] = gae_lambda ** (len(estimates) - 1)  # the longest stands for all that would be longer
        assert np.isclose(sum(weights), 1.0)
        adv[t, e, n] = np.dot(weights, estimates)
    return adv


@jax.jit
def fast_advantages(reward, value, next_value, terminated, done, gae_lambda):
    return generalised_advantages(reward, value, next_value, terminated, done, gamma=GAMMA, gae_lambda=gae_lambda)


@pytest.mark.parametrize("gae_lambda", [0.0, LAMBDA, 1.0])
def test_advantages_are_the_weighted_mean_of_all_n_step_ones(rollout, gae_lambda):
    reward, value, next_value, terminated, truncated = rollout
    ends = (np.repeat(flag[..., None], AGENTS, axis=-1) for flag in (terminated, terminated | truncated))
    found = fast_advantages(reward, value, next_value, *ends, gae_lambda)
    np.testing.assert_allclose(found, slow_advantages(*rollout, gae_lambda), rtol=1e-4, atol=1e-5)


def test_advantages_of_a_short_episode_by_hand():
    """Rewards 1, 2 and 4; gamma lambda = 1/2; the values are 8 everywhere."""
    reward = np.array([1.0, 2.0, 4.0], np.float32)
    value = np.full(3, 8.0, np.float32)
    never, at_the_end = np.zeros(3, bool), np.array([False, False, True])

    def advantages(terminated, done):
        return np.asarray(
            generalised_advantages(reward, value, value, terminated, done, gamma=0.5, gae_lambda=1.0)
        ).tolist()

    # delta = r + 4 - 8, but r - 8 where it terminates.
    assert advantages(at_the_end, at_the_end) == [-3 - 1 - 1, -2 - 2, -4]
    assert advantages(never, at_the_end) == [-3 - 1 + 0, -2 + 0, 0]


def test_the_value_loss_is_half_the_squared_error():
    value, target = np.array([1.0, -2.0], np.float32), np.array([3.0, -2.5], np.float32)
    np.testing.assert_allclose(value_loss(value, target, value, None), [2.0, 0.125])


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "slope"),
    [
        (1.1, 1.0, 3.0, 0.5 * 1.9**2, -1.9),  # within the range: as without
        (2.0, 1.0, 3.0, 0.5 * 1.8**2, 0.0),  # has come closer than the range allows: held, no gradient
        (0.0, 1.0, 3.0, 0.5 * 3.0**2, -3.0),  # has gone the wrong way: the larger loss, with its gradient
        (5.0, 1.0, 3.0, 0.5 * 2.0**2, 2.0),  # beyond the target by more than the held value lacks
    ],
)
def test_the_clipped_value_loss_by_hand(value, old, target, loss, slope):
    found, gradient = jax.value_and_grad(value_loss)(value, target, old, 0.2)
    np.testing.assert_allclose([found, gradient], [loss, slope], rtol=1e-5)
