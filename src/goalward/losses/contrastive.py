"""Contrastive critics: energies, noise-contrastive losses, and Q, V and A from representations.

`phi [B, Z]` represents state-action pairs and `psi [B, Z]` goals. `logits [B, B]` holds the energy of every pair,
rows are state-action pairs, columns goals, and the positive of each row lies on the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Under the square root, so that the gradient exists where two representations coincide.
_EPSILON = 1e-6
_EXCLUDED = -1e9


class Energy(NamedTuple):
    """A similarity of representations, for matching rows and for all pairs."""

    paired: Callable[[jax.Array, jax.Array], jax.Array]  # [..., Z], [..., Z] -> [...]
    all_pairs: Callable[[jax.Array, jax.Array], jax.Array]  # [B, Z], [C, Z] -> [B, C]


def _squared_distance(phi: jax.Array, psi: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(phi - psi), axis=-1)


def _dots(phi: jax.Array, psi: jax.Array) -> jax.Array:
    # Full precision: the squared distance below subtracts numbers of like size, which TF32 would not survive.
    return jnp.einsum("bz,cz->bc", phi, psi, precision=jax.lax.Precision.HIGHEST)


def _squared_distances(phi: jax.Array, psi: jax.Array) -> jax.Array:
    norms = jnp.sum(jnp.square(phi), -1)[:, None] + jnp.sum(jnp.square(psi), -1)[None, :]
    return jnp.maximum(norms - 2.0 * _dots(phi, psi), 0.0)


def _unit(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + _EPSILON)


ENERGIES: dict[str, Energy] = {
    # Equation 6: minus the Euclidean distance.
    "l2": Energy(
        lambda phi, psi: -jnp.sqrt(_squared_distance(phi, psi) + _EPSILON),
        lambda phi, psi: -jnp.sqrt(_squared_distances(phi, psi) + _EPSILON),
    ),
    "squared_l2": Energy(
        lambda phi, psi: -_squared_distance(phi, psi),
        lambda phi, psi: -_squared_distances(phi, psi),
    ),
    "dot": Energy(lambda phi, psi: jnp.sum(phi * psi, axis=-1), _dots),
    "cosine": Energy(
        lambda phi, psi: jnp.sum(_unit(phi) * _unit(psi), axis=-1),
        lambda phi, psi: _dots(_unit(phi), _unit(psi)),
    ),
}


class ContrastiveStats(NamedTuple):
    """Numbers that show the state of a contrastive critic, each a mean over anchors."""

    accuracy: jax.Array  # share of rows whose largest logit is the positive, ties shared
    positive: jax.Array  # energy of the positive pairs
    logsumexp: jax.Array  # log sum over goals of exp energy


def forward_info_nce(logits: jax.Array, allowed: jax.Array) -> jax.Array:
    """Returns [B], equation 3 row by row: for one state-action pair, the log-loss of picking its goal."""
    return _row_logsumexp(logits, allowed) - jnp.diagonal(logits)


def backward_info_nce(logits: jax.Array, allowed: jax.Array) -> jax.Array:
    """Returns [B], the same with the parts exchanged: for one goal, the log-loss of picking its origin."""
    return forward_info_nce(logits.T, allowed.T)


def symmetric_info_nce(logits: jax.Array, allowed: jax.Array) -> jax.Array:
    """Returns [B], the sum of the forward and the backward loss."""
    return forward_info_nce(logits, allowed) + backward_info_nce(logits, allowed)


def binary_nce(logits: jax.Array, allowed: jax.Array) -> jax.Array:
    """Returns [B], the logistic loss of the positive plus the mean logistic loss of the negatives."""
    negative = allowed & ~jnp.eye(logits.shape[0], dtype=bool)
    per_pair = jnp.where(negative, jax.nn.softplus(logits), 0.0)
    num_negatives = jnp.maximum(jnp.sum(negative, -1, dtype=jnp.float32), 1.0)
    return jax.nn.softplus(-jnp.diagonal(logits)) + jnp.sum(per_pair, -1) / num_negatives


LOSSES: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "forward": forward_info_nce,
    "backward": backward_info_nce,
    "symmetric": symmetric_info_nce,
    "binary": binary_nce,
}


def contrastive_loss(
    logits: jax.Array,
    *,
    loss: str,
    anchors: jax.Array,
    distinct: jax.Array,
    logsumexp_coef: float | jax.Array,
) -> tuple[jax.Array, ContrastiveStats]:
    """Returns the loss averaged over the anchors, and its statistics.

    Forward InfoNCE determines log p(g|s,a) only up to an arbitrary function of (s, a), which is exactly what an
    advantage at a fixed goal compares. The penalty `logsumexp_coef * logsumexp^2` pins that function.

    Args:
        logits: [B, B] energies.
        loss: a name in `LOSSES`.
        anchors: [B] bool, rows that count. The goals of the other rows are no negatives either, so that positives
            and negatives have one and the same marginal distribution.
        distinct: [B, B] bool, whether the goal of column j may be a negative for row i.
        logsumexp_coef: weight of the penalty.

    """
    diagonal = jnp.eye(logits.shape[0], dtype=bool)
    allowed = diagonal | (distinct & anchors[:, None] & anchors[None, :])
    lse = _row_logsumexp(logits, allowed)
    per_row = LOSSES[loss](logits, allowed) + logsumexp_coef * jnp.square(lse)
    candidates = jnp.where(allowed, logits, _EXCLUDED)
    best = jnp.max(candidates, axis=-1)
    # Of equal logits each is the largest with the same chance. Not by argmax, which is slow on a GPU.
    num_best = jnp.sum(candidates == jnp.broadcast_to(best[:, None], candidates.shape), axis=-1, dtype=jnp.float32)
    stats = ContrastiveStats(
        accuracy=masked_mean(jnp.where(jnp.diagonal(logits) >= best, 1.0 / num_best, 0.0), anchors),
        positive=masked_mean(jnp.diagonal(logits), anchors),
        logsumexp=masked_mean(lse, anchors),
    )
    return masked_mean(per_row, anchors), stats


def state_value(q: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns [...], V as the weighted sum of Q over actions.

    With all actions and their probabilities this is equation 7; with K samples of weight 1/K, equation 8.

    Args:
        q: [M, ...], Q of M actions.
        weights: [M, ...], non-negative, summing to one over M.

    """
    return jnp.sum(q * weights, axis=0)


def advantage(q: jax.Array, v: jax.Array) -> jax.Array:
    """Returns A = Q - V, equation 9."""
    return q - v


def masked_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the mean of `x` over the true entries of `mask`, zero if there are none."""
    # Selected rather than multiplied: what is left out may be infinite.
    total = jnp.sum(jnp.where(mask, x.astype(jnp.float32), 0.0))
    return total / jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1.0)


def _row_logsumexp(logits: jax.Array, allowed: jax.Array) -> jax.Array:
    return jax.nn.logsumexp(jnp.where(allowed, logits, _EXCLUDED), axis=-1)
