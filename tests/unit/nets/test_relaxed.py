"""Relaxed actions: samples that let the critic's gradient through to the policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from goalward.envs.base import Box, Discrete
from goalward.nets.heads import CategoricalHead, TanhGaussianHead

pytestmark = pytest.mark.usefixtures("strict_dtypes")

HEAD = CategoricalHead(Discrete(4))
LOGITS = np.array([0.5, -1.0, 2.0, 0.0], np.float32)
MASK = np.array([True, True, False, True])
WEIGHTS = np.array([1.0, -2.0, 50.0, 0.5], np.float32)  # a critic that is linear in the action
TEMPERATURE = 0.7


def relaxed(key, logits):
    return HEAD.relaxed(key, logits, MASK, TEMPERATURE)


@pytest.fixture(scope="module")
def draws():
    keys = jax.random.split(jax.random.key(0), 20_000)
    features, log_prob = jax.jit(jax.vmap(relaxed, in_axes=(0, None)))(keys, LOGITS)
    return np.asarray(features), np.asarray(log_prob)


def probabilities():
    weights = np.where(MASK, np.exp(LOGITS.astype(np.float64)), 0.0)
    return weights / weights.sum()


def test_forward_it_is_a_sample_of_the_masked_softmax(draws):
    features, _ = draws
    np.testing.assert_allclose(
        np.sort(features, axis=-1), np.sort(np.eye(4)[[0]], axis=-1).repeat(20_000, 0), atol=1e-6
    )
    np.testing.assert_allclose(features.mean(0), probabilities(), atol=4 * np.sqrt(0.25 / 20_000))


def test_forbidden_actions_are_impossible(draws):
    features, _ = draws
    assert not features[:, ~MASK].any()


def test_the_entropy_is_exact(draws):
    _, log_prob = draws
    p = probabilities()[MASK]
    np.testing.assert_allclose(log_prob, np.full(20_000, (p * np.log(p)).sum()), rtol=1e-5)


def test_backward_it_is_the_gradient_of_a_softmax_over_the_perturbed_logits():
    """Against central differences of that softmax with the same noise, in float64."""
    key = jax.random.key(3)
    noise = np.asarray(jax.random.gumbel(key, (4,)), np.float64)
    drawn = np.where(MASK, LOGITS + noise, -np.inf).argmax()
    assert relaxed(key, LOGITS)[0].argmax() == drawn  # so this is the noise that the head takes

    def soft(logits):
        log_probs = logits - np.log(np.exp(logits[MASK]).sum())
        perturbed = (log_probs + noise) / TEMPERATURE
        weights = np.where(MASK, np.exp(perturbed - perturbed[MASK].max()), 0.0)
        return weights / weights.sum() @ WEIGHTS.astype(np.float64)

    logits = LOGITS.astype(np.float64)
    step = 1e-6 * np.eye(4)
    differences = np.array([(soft(logits + d) - soft(logits - d)) / 2e-6 for d in step])
    gradient = jax.grad(lambda x: relaxed(key, x)[0] @ WEIGHTS)(jnp.asarray(LOGITS))

    np.testing.assert_allclose(gradient, differences, rtol=1e-4, atol=1e-6)
    assert gradient[2] == 0.0


def test_a_very_warm_relaxation_has_the_gradient_of_a_uniform_softmax():
    temperature = 1e4
    gradient = jax.grad(lambda x: HEAD.relaxed(jax.random.key(3), x, MASK, temperature)[0] @ WEIGHTS)(
        jnp.asarray(LOGITS)
    )

    # d softmax(x / T) / dx at even weights 1/3 is (diag(1/3) - 1/9) / T; the normalisation of logits drops out.
    even = np.where(MASK, 1 / 3, 0.0)
    expected = (even * WEIGHTS - even * (even @ WEIGHTS)) / temperature
    np.testing.assert_allclose(gradient, expected, rtol=1e-2, atol=1e-8)


def test_a_continuous_action_is_a_function_of_mean_and_spread():
    head = TanhGaussianHead(Box((-1.0,), (1.0,)), min_log_std=-4.0, max_log_std=1.0, initial_log_std=-0.5)
    outputs, mask, key = np.array([0.3, 0.2], np.float32), np.ones(1, bool), jax.random.key(0)
    features, log_prob = head.relaxed(key, outputs, mask, 1.0)
    action = head.sample(key, outputs, mask)

    np.testing.assert_allclose(features, np.tanh(action), rtol=1e-6)
    np.testing.assert_allclose(log_prob, head.log_prob(outputs, mask, action), rtol=1e-6)

    def value(raw):
        return jnp.sum(head.relaxed(key, raw, mask, 1.0)[0])

    gradient = jax.grad(value)(outputs)
    step = 1e-2 * np.eye(2, dtype=np.float32)
    differences = [(value(outputs + d) - value(outputs - d)) / 2e-2 for d in step]
    np.testing.assert_allclose(gradient, differences, rtol=1e-2)
