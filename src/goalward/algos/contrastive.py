"""The contrastive critic of every reward-free method: its settings, its gradient step, and its Q.

Axes: B environment steps in a minibatch, N agents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from goalward.algos.base import Metrics
from goalward.algos.common import CommonConfig
from goalward.algos.settings import Fraction, NonNegative, Traced, Width
from goalward.errors import UserError
from goalward.losses.contrastive import ENERGIES, contrastive_loss, state_value
from goalward.losses.relabel import Discount
from goalward.nets.heads import Head
from goalward.nets.mlp import Networks, apply, apply_both, make_networks

_MOST_PAIRED = 2**16


@dataclass(frozen=True, kw_only=True)
class ContrastiveConfig(CommonConfig):
    """Settings of the critic; the defaults are the paper's, or ours where it is silent."""

    critic_loss: Literal["forward", "backward", "symmetric", "binary"] = "forward"  # noise-contrastive loss
    logsumexp_coef: Traced[NonNegative] = 0.1  # weight of logsumexp^2, which pins what forward InfoNCE leaves open
    energy: Literal["l2", "squared_l2", "dot", "cosine"] = "l2"  # similarity of representations
    repr_dim: Width = 64  # size of a representation
    gamma: Traced[Fraction] = 0.99  # discount of the occupancy measure that positives are drawn from
    mask_same_episode: bool = False  # negatives from other episodes only
    positives: Literal["future", "shuffled"] = "future"  # "shuffled": from other episodes, a negative control
    networks: Networks | None = field(default=None, metadata={"python_only": True})  # a user's own modules

    def validate(self) -> None:
        """Raises `UserError` for values that do not go together."""
        super().validate()
        if self.networks is not None and not isinstance(self.networks, Networks):
            kind = type(self.networks).__name__
            raise UserError(f"networks must be goalward.Networks(policy, phi, psi); found {kind}.")
        if self.batch_size > _MOST_PAIRED:
            raise UserError(
                f"batch_size must be at most {_MOST_PAIRED}, since the critic compares all pairs of a minibatch; "
                f"found {self.batch_size}."
            )
        if self.positives == "shuffled" and self.num_envs < 2:
            raise UserError(f"num_envs must be at least 2 for shuffled positives; found {self.num_envs}.")

    def traced_values(self, names: Iterable[str]) -> dict[str, float]:
        """Returns settings as numbers in a compiled program; gamma as its logarithm, see `Discount`."""
        values = super().traced_values(names)
        return values | {"gamma": math.log(self.gamma)} if "gamma" in values else values

    def with_traced(self, values: Mapping[str, Any]) -> Self:
        """Returns resolved settings with some of them traced, given as `traced_values` has them."""
        return super().with_traced({k: Discount(v) if k == "gamma" else v for k, v in values.items()})

    def make_networks(self, head: Head) -> Networks:
        """Returns the user's modules, or the paper's networks."""
        return self.networks or make_networks(
            self.torso(),
            repr_dim=self.repr_dim,
            num_policy_outputs=head.num_outputs,
            policy_last_scale=self.policy_last_scale,
        )


class Encoders(NamedTuple):
    """Parameters of the critic."""

    phi: Any
    psi: Any


class Pairs(NamedTuple):
    """State-action pairs and the goals that followed them."""

    obs: jax.Array  # [B, N, D'], as the networks see it
    action: jax.Array  # [B, N] or [B, N, A]
    future_goal: jax.Array  # [B, N, G], the positive
    active: jax.Array  # [B, N], whether the pair counts
    episode: jax.Array  # [B], equal within an episode


class ContrastiveCritic:
    """Q(o, a, g) as the similarity of phi(o, a) and psi(g)."""

    def __init__(
        self, config: ContrastiveConfig, networks: Networks, head: Head, optimizer: optax.GradientTransformation
    ) -> None:
        self._config = config
        self._networks = networks
        self._head = head
        self._energy = ENERGIES[config.energy]
        self.optimizer = optimizer

    def init(
        self, key_phi: jax.Array, key_psi: jax.Array, obs: jax.Array, action: jax.Array, goal: jax.Array
    ) -> Encoders:
        """Returns parameters for inputs of these shapes."""
        return Encoders(phi=self._networks.phi.init(key_phi, obs, action), psi=self._networks.psi.init(key_psi, goal))

    def q_value(self, encoders: Encoders, obs: jax.Array, features: jax.Array, goal: jax.Array) -> jax.Array:
        """Returns [...], Q of observations, action features and goals (equation 6)."""
        phi = apply(self._networks.phi, encoders.phi, obs, features)
        psi = apply(self._networks.psi, encoders.psi, goal)
        return self._energy.paired(phi, jnp.broadcast_to(psi, phi.shape))

    def q_values(self, encoders: Encoders, obs: jax.Array, features: jax.Array, goal: jax.Array) -> jax.Array:
        """Returns [M, ...], Q of M actions, given as `Head.support` gives them, for the same observations and goals."""
        return self.q_value(encoders, obs[None], features, goal[None])

    def value(
        self, encoders: Encoders, obs: jax.Array, goal: jax.Array, support: tuple[jax.Array, jax.Array]
    ) -> jax.Array:
        """Returns [...], V as the mean of Q over `Head.support` of a policy (equations 7 and 8)."""
        features, weights = support
        return state_value(self.q_values(encoders, obs, features, goal), weights)

    def loss(self, encoders: Encoders, pairs: Pairs) -> tuple[jax.Array, Metrics]:
        """Returns the contrastive loss (equation 3) of a minibatch, and its metrics."""
        phi, psi = apply_both(
            (self._networks.phi, self._networks.psi),
            (encoders.phi, encoders.psi),
            ((pairs.obs, self._head.features(pairs.action)), (pairs.future_goal,)),
        )
        distinct = jnp.ones((phi.shape[0],) * 2, bool)
        if self._config.mask_same_episode:
            distinct = pairs.episode[:, None] != pairs.episode[None, :]

        def agent_loss(phi: jax.Array, psi: jax.Array, active: jax.Array) -> Any:
            return contrastive_loss(
                self._energy.all_pairs(phi, psi),
                loss=self._config.critic_loss,
                anchors=active,
                distinct=distinct,
                logsumexp_coef=self._config.logsumexp_coef,
            )

        # An agent's negatives are goals of the same agent in other steps. Every anchor weighs the same.
        per_agent = jax.vmap(agent_loss, in_axes=1)(phi, psi, pairs.active)
        num_anchors = jnp.sum(pairs.active, axis=0, dtype=jnp.float32)
        share = num_anchors / jnp.maximum(jnp.sum(num_anchors), 1.0)
        loss, stats = jax.tree.map(lambda x: jnp.sum(share * x), per_agent)
        return loss, {"critic/loss": loss} | {f"critic/{k}": v for k, v in stats._asdict().items()}

    def step(
        self, encoders: Encoders, opt_state: optax.OptState, pairs: Pairs
    ) -> tuple[Encoders, optax.OptState, Metrics]:
        """Returns the critic after one gradient step."""
        grads, metrics = jax.grad(self.loss, has_aux=True)(encoders, pairs)
        updates, opt_state = self.optimizer.update(grads, opt_state, encoders)
        metrics["critic/grad_norm"] = optax.tree.norm(grads)
        return optax.apply_updates(encoders, updates), opt_state, metrics
