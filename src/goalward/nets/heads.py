"""Policy heads: from a network's outputs to a distribution over actions.

The two heads have the same methods, so that nothing else in the package distinguishes discrete from continuous
actions. An action is stored in the form in which it was drawn: an index, or the Gaussian sample before squashing,
whose log-probability needs no inverse of tanh.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from goalward.envs.base import ActionSpace, Box, Discrete

_FORBIDDEN = -1e9


class Comparison(NamedTuple):
    """M actions of which two weighted sums are taken."""

    features: jax.Array  # [M, ..., A], or with axes of length one where they are the same for all rows
    policy: jax.Array  # [M, ...], weights of the mean under the policy
    taken: jax.Array  # [M, ...], one for the action that was taken and zero for all others


class Head(Protocol):
    """A family of action distributions over `[...]` batches of network outputs."""

    num_outputs: int

    def sample(self, key: jax.Array, outputs: jax.Array, mask: jax.Array) -> jax.Array:
        """Returns one action per row."""
        ...

    def mode(self, outputs: jax.Array, mask: jax.Array) -> jax.Array:
        """Returns the most probable action of each row (of the Gaussian, before squashing)."""
        ...

    def log_prob(self, outputs: jax.Array, mask: jax.Array, action: jax.Array) -> jax.Array:
        """Returns [...], the log-probability, or density in the squashed coordinates, of each action."""
        ...

    def entropy(self, key: jax.Array, outputs: jax.Array, mask: jax.Array) -> jax.Array:
        """Returns [...], the entropy, estimated from one sample where it has no closed form."""
        ...

    def support(
        self, key: jax.Array, outputs: jax.Array, mask: jax.Array, num_samples: int
    ) -> tuple[jax.Array, jax.Array]:
        """Returns M actions and weights [M, ...] that sum to one: an expectation under the policy.

        Every action with its probability if they can be listed, else `num_samples` draws of equal weight. The actions
        are features [M, ..., A], with axes of length one where they are the same for all rows.
        """
        ...

    def num_compared(self, num_samples: int) -> int:
        """Returns M of `comparison`."""
        ...

    def comparison(
        self, key: jax.Array, outputs: jax.Array, mask: jax.Array, action: jax.Array, num_samples: int
    ) -> Comparison:
        """Returns what one action is compared with under the policy, so that one pass of a critic gives Q and V."""
        ...

    def relaxed(
        self, key: jax.Array, outputs: jax.Array, mask: jax.Array, temperature: float | jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns features [..., A] of one action per row, and an estimate [...] of E[log pi]; both have gradients.

        `temperature` is that of the relaxation where actions are discrete; continuous ones need none.
        """
        ...

    def features(self, action: jax.Array) -> jax.Array:
        """Returns [..., A] float32, the action as the critic sees it."""
        ...

    def to_env(self, action: jax.Array) -> jax.Array:
        """Returns the action as the environment expects it."""
        ...


class CategoricalHead:
    """A softmax over the allowed actions."""

    def __init__(self, space: Discrete) -> None:
        self.num_actions = space.num_actions
        self.num_outputs = space.num_actions

    def log_probs(self, outputs: jax.Array, mask: jax.Array) -> jax.Array:
        """Returns [..., A], log-probabilities of all actions; forbidden ones are about -1e9."""
        return jax.nn.log_softmax(jnp.where(mask, outputs, _FORBIDDEN), axis=-1)

    def sample(self, key: jax.Array, outputs: jax.Array, mask: jax.Array) -> jax.Array:
        """See `Head.sample`."""
        return jax.random.categorical(key, self.log_probs(outputs, mask)).astype(jnp.int32)

    def mode(self, outputs: jax.Array, mask: jax.Array) -> jax.Array:
        """See `Head.mode`."""
        return jnp.argmax(self.log_probs(outputs, mask), axis=-1).astype(jnp.int32)

    def log_prob(self, outputs: jax.Array, mask: jax.Array, action: jax.Array) -> jax.Array:
        """See `Head.log_prob`."""
        log_probs = self.log_probs(outputs, mask)
        return jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]

    def entropy(self, key: jax.Array, outputs: jax.Array, mask: jax.Array) -> jax.Array:
        """See `Head.entropy`; exact."""
        del key
        log_probs = self.log_probs(outputs, mask)
        return -jnp.sum(jnp.where(mask, jnp.exp(log_probs) * log_probs, 0.0), axis=-1)

    def support(
        self, key: jax.Array, outputs: jax.Array, mask: jax.Array, num_samples: int
    ) -> tuple[jax.Array, jax.Array]:
        """See `Head.support`; all actions."""
        del key, num_samples
        probs = jnp.moveaxis(jnp.exp(self.log_probs(outputs, mask)), -1, 0)
        return self.every_action(probs.ndim - 1), probs

    def every_action(self, num_axes: int) -> jax.Array:
        """Returns [A, 1, ..., 1, A], the features of all actions for rows of so many axes."""
        return jnp.eye(self.num_actions).reshape(self.num_actions, *(1,) * num_axes, self.num_actions)

    def num_compared(self, num_samples: int) -> int:
        """See `Head.num_compared`."""
        del num_samples
        return self.num_actions

    def comparison(
        self, key: jax.Array, outputs: jax.Array, mask: jax.Array, action: jax.Array, num_samples: int
    ) -> Comparison:
        """See `Head.comparison`; the action is among those that are listed."""
        features, probs = self.support(key, outputs, mask, num_samples)
        return Comparison(features, probs, taken=jnp.moveaxis(self.features(action), -1, 0))

    def relaxed(
        self, key: jax.Array, outputs: jax.Array, mask: jax.Array, temperature: float | jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """See `Head.relaxed`; straight-through Gumbel-softmax, and the exact negated entropy.

        The features are the one-hot of a sample, their gradient that of a softmax over the perturbed logits. Forbidden
        actions have probability zero in both.
        """
        log_probs = self.log_probs(outputs, mask)
        noisy = jnp.where(mask, log_probs + jax.random.gumbel(key, log_probs.shape), _FORBIDDEN)
        hard = self.features(jnp.argmax(noisy, axis=-1))
        soft = jax.nn.softmax(noisy / temperature, axis=-1)
        return hard + soft - jax.lax.stop_gradient(soft), -self.entropy(key, outputs, mask)

    def features(self, action: jax.Array) -> jax.Array:
        """See `Head.features`; one-hot."""
        return jax.nn.one_hot(action, self.num_actions, dtype=jnp.float32)

    def to_env(self, action: jax.Array) -> jax.Array:
        """See `Head.to_env`."""
        return action


class TanhGaussianHead:
    """A diagonal Gaussian squashed by tanh and scaled to the box.

    The log-standard deviation is kept inside its bounds by a sigmoid, placed so that an output of zero means
    `initial_log_std`: unlike a hard clip it never loses its gradient.
    """

    def __init__(self, space: Box, *, min_log_std: float, max_log_std: float, initial_log_std: float) -> None:
        self.num_outputs = 2 * space.size
        self._low = jnp.asarray(space.low, jnp.float32)
        self._high = jnp.asarray(space.high, jnp.float32)
        self._min_log_std = min_log_std
        self._log_std_range = max_log_std - min_log_std
        share = (initial_log_std - min_log_std) / self._log_std_range
        self._offset = math.log(share / (1.0 - share))

    def mean_and_log_std(self, outputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns two [..., A], the parameters of the Gaussian before squashing."""
        mean, raw = jnp.split(outputs, 2, axis=-1)
        return mean, self._min_log_std + self._log_std_range * jax.nn.sigmoid(raw + self._offset)

    def sample(self, key: jax.Array, outputs: jax.Array, mask: jax.Array) -> jax.Array:
        """See `Head.sample`; before squashing."""
        del mask
        mean, log_std = self.mean_and_log_std(outputs)
        return mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)

    def mode(self, outputs: jax.Array, mask: jax.Array) -> jax.Array:
        """See `Head.mode`; before squashing."""
        del mask
        return self.mean_and_log_std(outputs)[0]

    def log_prob(self, outputs: jax.Array, mask: jax.Array, action: jax.Array) -> jax.Array:
        """See `Head.log_prob`; density of tanh(action) on [-1, 1]^A."""
        del mask
        mean, log_std = self.mean_and_log_std(outputs)
        squared = jnp.square((action - mean) * jnp.exp(-log_std))
        gaussian = -0.5 * squared - log_std - 0.5 * math.log(2.0 * math.pi)
        return jnp.sum(gaussian - _log_tanh_slope(action), axis=-1)

    def entropy(self, key: jax.Array, outputs: jax.Array, mask: jax.Array) -> jax.Array:
        """See `Head.entropy`.

        The Gaussian's entropy is exact; the change by squashing is estimated from one sample. Without it the bonus
        would widen the Gaussian without end, though its squashed form has long been at the corners of the box.
        """
        _, log_std = self.mean_and_log_std(outputs)
        gaussian = log_std + 0.5 * math.log(2.0 * math.pi * math.e)
        return jnp.sum(gaussian + _log_tanh_slope(self.sample(key, outputs, mask)), axis=-1)

    def support(
        self, key: jax.Array, outputs: jax.Array, mask: jax.Array, num_samples: int
    ) -> tuple[jax.Array, jax.Array]:
        """See `Head.support`; independent draws."""
        repeated = jnp.broadcast_to(outputs, (num_samples, *outputs.shape))
        actions = self.sample(key, repeated, mask)
        return self.features(actions), jnp.full(actions.shape[:-1], 1.0 / num_samples, jnp.float32)

    def num_compared(self, num_samples: int) -> int:
        """See `Head.num_compared`."""
        return num_samples + 1

    def comparison(
        self, key: jax.Array, outputs: jax.Array, mask: jax.Array, action: jax.Array, num_samples: int
    ) -> Comparison:
        """See `Head.comparison`; the action follows the draws."""
        features, weights = self.support(key, outputs, mask, num_samples)
        zeros, one = jnp.zeros_like(weights), jnp.ones_like(weights[:1])
        return Comparison(
            features=jnp.concatenate([features, self.features(action)[None]]),
            policy=jnp.concatenate([weights, zeros[:1]]),
            taken=jnp.concatenate([zeros, one]),
        )

    def relaxed(
        self, key: jax.Array, outputs: jax.Array, mask: jax.Array, temperature: float | jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """See `Head.relaxed`; a draw as a function of mean and spread, and its log-probability."""
        del temperature
        action = self.sample(key, outputs, mask)
        return self.features(action), self.log_prob(outputs, mask, action)

    def features(self, action: jax.Array) -> jax.Array:
        """See `Head.features`; in [-1, 1]."""
        return jnp.tanh(action)

    def to_env(self, action: jax.Array) -> jax.Array:
        """See `Head.to_env`; inside the box."""
        low, high = (jnp.broadcast_to(bound, action.shape) for bound in (self._low, self._high))
        # Rounding alone could carry an action over the edge.
        return jnp.clip(low + (high - low) * 0.5 * (jnp.tanh(action) + 1.0), low, high)


def make_head(space: ActionSpace, *, min_log_std: float, max_log_std: float, initial_log_std: float) -> Head:
    """Returns the head for an action space."""
    if isinstance(space, Discrete):
        return CategoricalHead(space)
    return TanhGaussianHead(space, min_log_std=min_log_std, max_log_std=max_log_std, initial_log_std=initial_log_std)


def _log_tanh_slope(x: jax.Array) -> jax.Array:
    # log(1 - tanh(x)^2) without cancellation for large |x|.
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))
