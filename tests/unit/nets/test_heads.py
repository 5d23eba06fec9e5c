"""Policy heads: probabilities against loops, densities against quadrature."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from goalward.envs.base import Box, Discrete
from goalward.nets.heads import CategoricalHead, TanhGaussianHead, make_head

pytestmark = pytest.mark.usefixtures("strict_dtypes")


def compiled(head):
    """Returns the head with its methods compiled: one program each in place of a dozen."""
    for name in ("log_probs", "mean_and_log_std", "sample", "mode", "log_prob", "entropy", "features", "to_env"):
        if hasattr(head, name):
            setattr(head, name, jax.jit(getattr(head, name)))
    return head


CATEGORICAL = compiled(CategoricalHead(Discrete(5)))
LOGITS = np.array([[0.5, -1.0, 2.0, 0.0, 1.0], [3.0, 3.0, -2.0, 9.0, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0]], np.float32)
# All allowed; the favourite forbidden; only one left.
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 0, 0]], bool)

MIN_LOG_STD, MAX_LOG_STD, INITIAL_LOG_STD = -4.0, 1.0, -0.5
BOUNDS = dict(min_log_std=MIN_LOG_STD, max_log_std=MAX_LOG_STD)
GAUSSIAN = compiled(TanhGaussianHead(Box((-1.0, 0.0), (3.0, 0.5)), initial_log_std=INITIAL_LOG_STD, **BOUNDS))
GAUSSIAN_1D = compiled(TanhGaussianHead(Box((-1.0,), (1.0,)), initial_log_std=0.0, **BOUNDS))
NO_MASK = np.ones(1, bool)


def slow_probabilities(logits, mask):
    """Returns a softmax over the allowed actions, row by row."""
    result = np.zeros(logits.shape)
    for i, row in enumerate(logits):
        allowed = [a for a in range(len(row)) if mask[i, a]]
        total = sum(math.exp(row[a]) for a in allowed)
        for a in allowed:
            result[i, a] = math.exp(row[a]) / total
    return result


def raw_for(log_std, initial=0.0):
    """Returns the network output that means a log-standard deviation, by the inverse of the sigmoid."""
    share, initial_share = ((x - MIN_LOG_STD) / (MAX_LOG_STD - MIN_LOG_STD) for x in (log_std, initial))
    return math.log(share / (1.0 - share)) - math.log(initial_share / (1.0 - initial_share))


def test_probabilities_are_a_softmax_over_the_allowed_actions():
    expected = slow_probabilities(LOGITS, MASK)
    np.testing.assert_allclose(np.exp(CATEGORICAL.log_probs(LOGITS, MASK)), expected, rtol=1e-5)
    for action in range(5):
        actions = jnp.full(3, action)
        allowed = MASK[:, action]
        log_prob = np.asarray(CATEGORICAL.log_prob(LOGITS, MASK, actions))
        np.testing.assert_allclose(log_prob[allowed], np.log(expected[allowed, action]), rtol=1e-5, atol=1e-6)
        assert (log_prob[~allowed] < -1e8).all()


def test_samples_have_these_frequencies_and_are_never_forbidden():
    num_samples = 20_000
    many = [np.broadcast_to(x, (num_samples, 3, 5)) for x in (LOGITS, MASK)]
    samples = np.asarray(CATEGORICAL.sample(jax.random.key(0), *many))
    assert samples.dtype == np.int32
    for row, probability in enumerate(slow_probabilities(LOGITS, MASK)):
        counts = np.bincount(samples[:, row], minlength=5)
        allowed = MASK[row]
        assert (counts[~allowed] == 0).all()
        if allowed.sum() > 1:
            assert stats.chisquare(counts[allowed], num_samples * probability[allowed]).pvalue > 1e-3


def test_mode_is_the_best_allowed_action():
    np.testing.assert_array_equal(CATEGORICAL.mode(LOGITS, MASK), [2, 0, 1])


def test_entropy_equals_a_loop_and_has_a_finite_gradient():
    expected = [-sum(p * math.log(p) for p in row if p > 0) for row in slow_probabilities(LOGITS, MASK)]
    key = jax.random.key(0)
    np.testing.assert_allclose(CATEGORICAL.entropy(key, LOGITS, MASK), expected, rtol=1e-5, atol=1e-6)
    gradient = jax.jit(jax.grad(lambda x: CATEGORICAL.entropy(key, x, MASK).sum()))(LOGITS)
    assert np.isfinite(gradient).all()
    assert (np.asarray(gradient)[~MASK] == 0.0).all()


def test_support_lists_every_action_with_its_probability():
    actions, weights = CATEGORICAL.support(jax.random.key(0), LOGITS, MASK, 3)
    np.testing.assert_array_equal(actions, np.eye(5)[:, None, :])
    np.testing.assert_allclose(np.asarray(weights).T, slow_probabilities(LOGITS, MASK), rtol=1e-5)
    assert (np.asarray(weights).T[~MASK] == 0.0).all()
    np.testing.assert_allclose(weights.sum(0), np.ones(3), rtol=1e-6)


@pytest.mark.parametrize("is_discrete", [True, False])
def test_a_comparison_has_the_support_and_the_action_that_was_taken(is_discrete):
    head, outputs, mask = (CATEGORICAL, LOGITS, MASK) if is_discrete else (GAUSSIAN, jnp.ones((3, 4)), NO_MASK)
    key, action = jax.random.key(0), head.mode(outputs, mask)
    compared = head.comparison(key, outputs, mask, action, 7)
    features, weights = head.support(key, outputs, mask, 7)
    q = np.random.default_rng(0).normal(size=compared.policy.shape)
    assert q.shape[0] == head.num_compared(7) == (5 if is_discrete else 8)
    np.testing.assert_allclose((q * compared.policy).sum(0), (q[: len(weights)] * weights).sum(0), rtol=1e-5)
    rows = np.broadcast_to(compared.features, (*q.shape, compared.features.shape[-1]))
    np.testing.assert_array_equal(rows[: len(weights)], np.broadcast_to(features, (*weights.shape, rows.shape[-1])))
    np.testing.assert_allclose((rows * np.asarray(compared.taken)[..., None]).sum(0), head.features(action), rtol=1e-6)
    np.testing.assert_array_equal(np.sort(compared.taken, axis=0)[:-1], 0.0)


def test_the_critic_sees_a_discrete_action_as_one_hot_and_the_environment_as_its_index():
    actions = jnp.array([[4, 0], [2, 1]], jnp.int32)
    np.testing.assert_array_equal(CATEGORICAL.features(actions), np.eye(5)[np.asarray(actions)])
    np.testing.assert_array_equal(CATEGORICAL.to_env(actions), actions)


@pytest.mark.parametrize("mean", [-1.5, 0.0, 0.7])
@pytest.mark.parametrize("log_std", [-2.0, 0.0, 0.9])
def test_density_of_the_squashed_action_integrates_to_one(mean, log_std):
    outputs = np.array([mean, raw_for(log_std)], np.float32)
    before = np.linspace(-16.0, 16.0, 40_001)
    rows = np.broadcast_to(outputs, (len(before), 2))
    density = np.exp(GAUSSIAN_1D.log_prob(rows, NO_MASK, before[:, None].astype(np.float32)))
    squashed = np.tanh(before)
    np.testing.assert_allclose(np.trapezoid(density, squashed), 1.0, atol=2e-3)
    # A moment too: the mean of the squashed action, from the Gaussian itself.
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    expected = (weights * np.tanh(mean + math.exp(log_std) * nodes)).sum() / weights.sum()
    np.testing.assert_allclose(np.trapezoid(density * squashed, squashed), expected, atol=2e-3)


def test_log_prob_equals_the_change_of_variables_formula():
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(50, 4)).astype(np.float32)
    action = rng.normal(scale=2.0, size=(50, 2)).astype(np.float32)
    mean, log_std = (np.asarray(x, np.float64) for x in GAUSSIAN.mean_and_log_std(outputs))
    expected = np.zeros(50)
    for row in range(50):
        for d in range(2):
            u = float(action[row, d])
            expected[row] += stats.norm.logpdf(u, mean[row, d], math.exp(log_std[row, d]))
            expected[row] -= math.log1p(-(math.tanh(u) ** 2))
    np.testing.assert_allclose(GAUSSIAN.log_prob(outputs, NO_MASK, action), expected, rtol=1e-4, atol=1e-4)


def test_log_prob_stays_finite_where_tanh_is_one_in_floating_point():
    # 1 - tanh(20)^2 is zero in float32; its logarithm is log 4 - 40.
    log_prob = GAUSSIAN_1D.log_prob(jnp.array([20.0, 0.0]), NO_MASK, jnp.array([20.0]))
    np.testing.assert_allclose(log_prob, stats.norm.logpdf(0.0) - (math.log(4.0) - 40.0), rtol=1e-5)


def test_an_output_of_zero_means_the_initial_log_std():
    mean, log_std = GAUSSIAN.mean_and_log_std(jnp.array([0.3, -0.2, 0.0, 0.0]))
    np.testing.assert_allclose(mean, [0.3, -0.2], rtol=1e-6)
    np.testing.assert_allclose(log_std, [INITIAL_LOG_STD] * 2, rtol=1e-5)
    _, log_std = GAUSSIAN.mean_and_log_std(jnp.array([0.0, 0.0, raw_for(-3.0, INITIAL_LOG_STD), 0.0]))
    np.testing.assert_allclose(log_std, [-3.0, INITIAL_LOG_STD], rtol=1e-5)


def test_log_std_stays_within_its_bounds_and_keeps_its_gradient():
    outputs = np.repeat(np.linspace(-30.0, 30.0, 61, dtype=np.float32)[:, None], 4, axis=1)
    log_std = np.asarray(GAUSSIAN.mean_and_log_std(outputs)[1])
    assert (log_std >= MIN_LOG_STD - 1e-6).all()
    assert (log_std <= MAX_LOG_STD + 1e-6).all()
    np.testing.assert_allclose(log_std[[0, -1], 0], [MIN_LOG_STD, MAX_LOG_STD], atol=1e-5)
    assert (np.diff(log_std[:, 0]) >= 0.0).all()
    slope = jax.jit(jax.grad(lambda x: GAUSSIAN_1D.mean_and_log_std(x)[1].sum()))(
        np.stack([np.zeros(13), np.linspace(-6.0, 6.0, 13)], axis=-1).astype(np.float32)
    )[:, 1]
    assert (np.asarray(slope) > 1e-3).all()


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.0, -1.0), (-0.5, 0.9)])
def test_mean_of_the_entropy_estimate_is_the_entropy_by_quadrature(mean, log_std):
    std = math.exp(log_std)
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    u = mean + std * nodes
    log_density = stats.norm.logpdf(u, mean, std) - 2.0 * (math.log(2.0) - u - np.logaddexp(0.0, -2.0 * u))
    exact = -(weights * log_density).sum() / weights.sum()
    rows = np.broadcast_to(np.array([mean, raw_for(log_std)], jnp.float32), (50_000, 2))
    estimates = np.asarray(GAUSSIAN_1D.entropy(jax.random.key(0), rows, NO_MASK))
    assert abs(estimates.mean() - exact) < 4.0 * estimates.std() / math.sqrt(len(estimates)) + 1e-4
    # The uniform density on [-1, 1] has the most.
    assert exact < math.log(2.0)


def test_entropy_falls_again_when_the_gaussian_is_wider_than_the_box():
    # Without the correction for squashing, entropy would rise with the standard deviation for ever.
    rows = [np.broadcast_to(np.array([0.0, raw_for(x)], jnp.float32), (50_000, 2)) for x in (-0.1, 0.9)]
    medium, wide = (float(GAUSSIAN_1D.entropy(jax.random.key(0), r, NO_MASK).mean()) for r in rows)
    assert wide < medium - 0.1


def test_samples_are_gaussian_before_squashing():
    outputs = jnp.array([0.4, -1.0, raw_for(-1.0, INITIAL_LOG_STD), raw_for(0.5, INITIAL_LOG_STD)], jnp.float32)
    samples = np.asarray(GAUSSIAN.sample(jax.random.key(0), np.broadcast_to(outputs, (20_000, 4)), NO_MASK))
    for d, (mean, log_std) in enumerate([(0.4, -1.0), (-1.0, 0.5)]):
        assert stats.kstest(samples[:, d], stats.norm(mean, math.exp(log_std)).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.03
    np.testing.assert_allclose(GAUSSIAN.mode(outputs, NO_MASK), [0.4, -1.0], rtol=1e-6)


def test_support_of_the_gaussian_is_independent_draws_of_equal_weight():
    outputs = jnp.array([[0.4, -1.0, 0.0, 0.0], [2.0, 2.0, -3.0, -3.0]])
    actions, weights = GAUSSIAN.support(jax.random.key(0), outputs, NO_MASK, 5_000)
    assert actions.shape == (5_000, 2, 2)
    np.testing.assert_allclose(weights, np.full((5_000, 2), 1.0 / 5_000), rtol=1e-6)
    mean, log_std = (np.asarray(x) for x in GAUSSIAN.mean_and_log_std(outputs))
    for row, d in np.ndindex(2, 2):
        distribution = stats.norm(mean[row, d], math.exp(log_std[row, d]))
        before_tanh = np.arctanh(np.clip(np.asarray(actions[:, row, d], np.float64), -1 + 1e-7, 1 - 1e-7))
        assert stats.kstest(before_tanh, distribution.cdf).pvalue > 1e-3


def test_actions_fill_an_asymmetric_box_and_never_leave_it():
    action = np.repeat(np.linspace(-30.0, 30.0, 101, dtype=np.float32)[:, None], 2, axis=1)
    env_action = np.asarray(GAUSSIAN.to_env(action))
    low, high = np.array([-1.0, 0.0]), np.array([3.0, 0.5])
    assert (env_action >= low).all()
    assert (env_action <= high).all()
    np.testing.assert_allclose(env_action[[0, 50, 100]], [low, (low + high) / 2, high], atol=1e-5)
    # A quarter of the way: tanh(u) = -1/2.
    np.testing.assert_allclose(GAUSSIAN.to_env(jnp.full(2, -math.atanh(0.5))), low + (high - low) / 4, rtol=1e-5)


def test_rounding_does_not_carry_an_action_over_the_edge_of_the_box():
    # In float32, -1 + (0.1 + 1) is one unit in the last place above 0.1.
    head = compiled(TanhGaussianHead(Box((-1.0,), (0.1,)), initial_log_std=0.0, **BOUNDS))
    assert head.to_env(jnp.full(1, 30.0))[0] <= np.float32(0.1)


def test_the_critic_sees_a_continuous_action_scaled_to_one():
    np.testing.assert_allclose(
        GAUSSIAN.features(jnp.array([-30.0, 0.0, math.atanh(0.25)])), [-1.0, 0.0, 0.25], atol=1e-6
    )


def test_the_action_space_decides_the_head():
    discrete = make_head(Discrete(7), initial_log_std=0.0, **BOUNDS)
    continuous = make_head(Box((-1.0,) * 3, (1.0,) * 3), initial_log_std=0.0, **BOUNDS)
    assert isinstance(discrete, CategoricalHead)
    assert discrete.num_outputs == 7
    assert isinstance(continuous, TanhGaussianHead)
    assert continuous.num_outputs == 6
