"""The entropy side of SAC: the policy's loss and the temperature's."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from goalward.losses.contrastive import masked_mean


def soft_policy_loss(q: jax.Array, log_prob: jax.Array, log_alpha: jax.Array, active: jax.Array) -> jax.Array:
    """Returns the mean of alpha log pi - Q over the active rows; the temperature is taken as given."""
    return masked_mean(jax.lax.stop_gradient(jnp.exp(log_alpha)) * log_prob - q, active)


def temperature_loss(
    log_alpha: jax.Array, log_prob: jax.Array, target_entropy: float | jax.Array, active: jax.Array
) -> jax.Array:
    """Returns alpha (entropy - target): its gradient raises alpha where the policy's entropy is below the target."""
    surplus = masked_mean(-log_prob - target_entropy, active)
    return jnp.exp(log_alpha) * jax.lax.stop_gradient(surplus)
