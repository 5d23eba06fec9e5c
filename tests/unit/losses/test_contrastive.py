"""Energies and contrastive losses against loops in NumPy."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from goalward.losses.contrastive import ENERGIES, LOSSES, advantage, contrastive_loss, masked_mean, state_value

pytestmark = pytest.mark.usefixtures("strict_dtypes")

ROWS, DIM = 6, 4
EVERY = np.ones(ROWS, bool)
EVERY_PAIR = np.ones((ROWS, ROWS), bool)
# Two inactive rows.
SOME = np.array([True, False, True, True, False, True])
# Rows 0 and 2, and rows 3 and 5, come from one episode.
OTHER_EPISODE = np.not_equal.outer([0, 1, 0, 2, 3, 2], [0, 1, 0, 2, 3, 2])
# A mask that tells rows from columns.
ONE_WAY = np.tri(ROWS, dtype=bool)


def representations(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, DIM)).astype(np.float32), rng.normal(size=(rows, DIM)).astype(np.float32)


def some_logits(seed=1):
    return np.random.default_rng(seed).normal(scale=2.0, size=(ROWS, ROWS)).astype(np.float32)


def slow_energy(name, a, b):
    dot = sum(float(x) * float(y) for x, y in zip(a, b, strict=True))
    squared = sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True))
    lengths = math.sqrt(sum(float(x) ** 2 for x in a)) * math.sqrt(sum(float(x) ** 2 for x in b))
    return {"l2": -math.sqrt(squared), "squared_l2": -squared, "dot": dot, "cosine": dot / lengths}[name]


def softplus(x):
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def slow_logsumexp(values):
    return math.log(sum(math.exp(float(v)) for v in values))


def slow_loss(logits, loss, anchors, distinct, coef):
    """Returns the loss by the definition: one anchor after the other, its candidates listed."""
    indices = range(len(logits))
    rows = []
    for i in indices:
        if not anchors[i]:
            continue
        goals = [j for j in indices if j == i or (anchors[j] and distinct[i, j])]
        origins = [k for k in indices if k == i or (anchors[k] and distinct[k, i])]
        negatives = [softplus(float(logits[i, j])) for j in goals if j != i]
        row_lse = slow_logsumexp(logits[i, j] for j in goals)
        forward = row_lse - float(logits[i, i])
        backward = slow_logsumexp(logits[k, i] for k in origins) - float(logits[i, i])
        binary = softplus(-float(logits[i, i])) + (sum(negatives) / len(negatives) if negatives else 0.0)
        terms = {"forward": forward, "backward": backward, "symmetric": forward + backward, "binary": binary}
        rows.append(terms[loss] + coef * row_lse**2)
    return sum(rows) / len(rows) if rows else 0.0


@partial(jax.jit, static_argnames="loss")
def loss_stats_gradient(logits, anchors, distinct, coef, *, loss):
    def total(logits):
        return contrastive_loss(logits, loss=loss, anchors=anchors, distinct=distinct, logsumexp_coef=coef)

    (value, stats), gradient = jax.value_and_grad(total, has_aux=True)(logits)
    return value, stats, gradient


@pytest.mark.parametrize("name", ENERGIES)
def test_energy_of_all_pairs_equals_a_loop(name):
    phi, _ = representations()
    psi, _ = representations(seed=5, rows=3)
    expected = [[slow_energy(name, a, b) for b in psi] for a in phi]
    np.testing.assert_allclose(jax.jit(ENERGIES[name].all_pairs)(phi, psi), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ENERGIES)
def test_energy_of_pairs_equals_a_loop_and_the_diagonal_of_all_pairs(name):
    phi, psi = representations()
    paired = jax.jit(ENERGIES[name].paired)(phi, psi)
    np.testing.assert_allclose(
        paired, [slow_energy(name, a, b) for a, b in zip(phi, psi, strict=True)], rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(paired, np.diagonal(jax.jit(ENERGIES[name].all_pairs)(phi, psi)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ENERGIES)
def test_paired_energy_keeps_leading_axes(name):
    phi, psi = (x.reshape(2, 3, DIM) for x in representations())
    paired = jax.jit(ENERGIES[name].paired)(phi, psi)
    assert paired.shape == (2, 3)
    np.testing.assert_allclose(paired[1, 2], slow_energy(name, phi[1, 2], psi[1, 2]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1.5])
@pytest.mark.parametrize("name", ENERGIES)
def test_gradient_is_finite_where_representations_coincide(name, value):
    same = jnp.full((3, DIM), value)
    energy = ENERGIES[name]
    for function in (energy.paired, energy.all_pairs):
        gradients = jax.jit(jax.grad(lambda a, b, f=function: f(a, b).sum(), argnums=(0, 1)))(same, same)
        assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("name", ["l2", "squared_l2"])
def test_distances_far_from_the_origin_are_never_positive_energies(name):
    phi = 100.0 + representations()[0]
    energies = jax.jit(ENERGIES[name].all_pairs)(phi, phi)
    assert np.isfinite(energies).all()
    assert (np.asarray(energies) <= 0.0).all()


@pytest.mark.parametrize("coef", [0.0, 0.1])
@pytest.mark.parametrize(
    "distinct", [EVERY_PAIR, OTHER_EPISODE, ONE_WAY], ids=["all_pairs", "other_episodes", "one_way"]
)
@pytest.mark.parametrize("anchors", [EVERY, SOME], ids=["all_active", "some_inactive"])
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_equals_a_loop(loss, anchors, distinct, coef):
    logits = some_logits()
    value, _, _ = loss_stats_gradient(logits, anchors, distinct, np.float32(coef), loss=loss)
    np.testing.assert_allclose(value, slow_loss(logits, loss, anchors, distinct, coef), rtol=1e-5)


def two_by_two(loss, coef=0.0):
    """Returns loss and statistics for logits that are logarithms of 1, 3, 2 and 6, so that sums are easily done.

    The other rows are inactive.
    """
    logits = some_logits()
    logits[:2, :2] = np.log([[1.0, 3.0], [2.0, 6.0]])
    value, stats, _ = loss_stats_gradient(logits, np.arange(ROWS) < 2, EVERY_PAIR, np.float32(coef), loss=loss)
    return value, stats


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        # Row 0: log(1 + 3) - log 1; row 1: log(2 + 6) - log 6.
        ("forward", 0.5 * (math.log(4) + math.log(8 / 6))),
        # Column 0: log(1 + 2) - log 1; column 1: log(3 + 6) - log 6.
        ("backward", 0.5 * (math.log(3) + math.log(9 / 6))),
        ("symmetric", 0.5 * (math.log(4) + math.log(8 / 6) + math.log(3) + math.log(9 / 6))),
        # log(1 + 1/positive) + log(1 + negative).
        ("binary", 0.5 * (math.log(2) + math.log(4) + math.log(7 / 6) + math.log(3))),
    ],
)
def test_loss_of_two_rows_worked_out_by_hand(loss, expected):
    value, stats = two_by_two(loss)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(stats.logsumexp, 0.5 * (math.log(4) + math.log(8)), rtol=1e-5)
    np.testing.assert_allclose(stats.positive, 0.5 * (math.log(1) + math.log(6)), rtol=1e-5)
    # Row 0 prefers goal 1, row 1 prefers its own.
    assert stats.accuracy == 0.5


def test_a_critic_that_tells_nothing_apart_is_as_accurate_as_chance():
    everything = jnp.ones((8, 8), bool)
    _, stats = contrastive_loss(
        jnp.zeros((8, 8)), loss="forward", anchors=jnp.ones(8, bool), distinct=everything, logsumexp_coef=0.0
    )
    np.testing.assert_allclose(stats.accuracy, 1 / 8, rtol=1e-6)


def test_penalty_adds_the_mean_square_of_the_logsumexp():
    plain, _ = two_by_two("forward")
    penalised, _ = two_by_two("forward", coef=0.1)
    np.testing.assert_allclose(penalised - plain, 0.1 * 0.5 * (math.log(4) ** 2 + math.log(8) ** 2), rtol=1e-5)


def test_equation_3_from_representations():
    # Equation 3 with the energy of equation 6, all in one loop.
    phi, psi = representations()
    total = 0.0
    for i in range(ROWS):
        weights = [math.exp(-np.linalg.norm(phi[i].astype(np.float64) - psi[j])) for j in range(ROWS)]
        total -= math.log(weights[i] / sum(weights))
    logits = jax.jit(ENERGIES["l2"].all_pairs)(phi, psi)
    value, _, _ = loss_stats_gradient(logits, EVERY, EVERY_PAIR, np.float32(0.0), loss="forward")
    np.testing.assert_allclose(value, total / ROWS, rtol=1e-5)


def test_forward_loss_ignores_a_shift_of_a_row_and_the_penalty_does_not():
    # The function of (s, a) that forward InfoNCE leaves open.
    logits = some_logits()
    shifted = logits + np.linspace(-2.0, 2.0, ROWS, dtype=np.float32)[:, None]
    compare = {}
    for name, loss, coef in [("forward", "forward", 0.0), ("penalty", "forward", 0.1), ("symmetric", "symmetric", 0.0)]:
        values = [loss_stats_gradient(x, EVERY, EVERY_PAIR, np.float32(coef), loss=loss)[0] for x in (logits, shifted)]
        compare[name] = abs(float(values[0] - values[1]))
    assert compare["forward"] < 1e-5
    assert compare["penalty"] > 0.1
    assert compare["symmetric"] > 0.1


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_and_columns_of_inactive_anchors_have_no_influence(loss):
    logits, noise = some_logits(), some_logits(2)
    touched = ~(SOME[:, None] & SOME[None, :])
    changed = np.where(touched, 10.0 * noise, logits)
    coef = np.float32(0.1)
    before = loss_stats_gradient(logits, SOME, EVERY_PAIR, coef, loss=loss)
    after = loss_stats_gradient(changed, SOME, EVERY_PAIR, coef, loss=loss)
    np.testing.assert_allclose(before[0], after[0], rtol=1e-6)
    np.testing.assert_allclose(before[1], after[1], rtol=1e-6)
    assert (np.asarray(before[2])[touched] == 0.0).all()
    assert (np.asarray(before[2])[~touched] != 0.0).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_without_active_rows_the_loss_is_zero_and_its_gradient_finite(loss):
    nobody = np.zeros(ROWS, bool)
    value, stats, gradient = loss_stats_gradient(some_logits(), nobody, EVERY_PAIR, np.float32(0.1), loss=loss)
    assert value == 0.0
    assert all(s == 0.0 for s in stats)
    assert (np.asarray(gradient) == 0.0).all()


def test_statistics_equal_a_loop_over_active_rows():
    logits = some_logits() + 1.5 * np.eye(ROWS, dtype=np.float32)
    _, stats, _ = loss_stats_gradient(logits, SOME, OTHER_EPISODE, np.float32(0.0), loss="forward")
    hits, positives, sums = [], [], []
    for i in np.flatnonzero(SOME):
        goals = [j for j in range(ROWS) if j == i or (SOME[j] and OTHER_EPISODE[i, j])]
        hits.append(max(goals, key=lambda j, i=i: logits[i, j]) == i)
        positives.append(logits[i, i])
        sums.append(slow_logsumexp(logits[i, j] for j in goals))
    assert 0 < sum(hits) < len(hits)
    np.testing.assert_allclose(stats.accuracy, np.mean(hits), rtol=1e-6)
    np.testing.assert_allclose(stats.positive, np.mean(positives), rtol=1e-5)
    np.testing.assert_allclose(stats.logsumexp, np.mean(sums), rtol=1e-5)


def test_masked_mean_counts_true_entries_only():
    assert masked_mean(jnp.array([1.0, 5.0, 100.0]), jnp.array([True, True, False])) == 3.0
    assert masked_mean(jnp.array([True, False, True]), jnp.array([True, True, False])) == 0.5


def test_masked_mean_over_nothing_is_zero():
    assert masked_mean(jnp.array([1.0, 2.0]), jnp.zeros(2, bool)) == 0.0


def test_state_value_and_advantage_worked_out_by_hand():
    # Equations 7 and 9: two states, three actions.
    q = jnp.array([[-1.0, 0.0], [-2.0, 4.0], [-3.0, 8.0]])
    policy = jnp.array([[0.5, 0.25], [0.5, 0.5], [0.0, 0.25]])
    v = state_value(q, policy)
    np.testing.assert_allclose(v, [-1.5, 4.0], rtol=1e-6)
    np.testing.assert_allclose(advantage(q[0], v), [0.5, -4.0], rtol=1e-6)


def test_a_mean_is_not_touched_by_what_is_left_out():
    assert masked_mean(jnp.array([1.0, jnp.inf, 3.0]), jnp.array([True, False, True])) == 2.0
