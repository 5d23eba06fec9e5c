"""Networks as multilayer perceptrons, and the interface for a user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from goalward.errors import UserError, brief

Activation = Literal["swish", "relu", "tanh", "gelu"]
Precision = Literal["float32", "bfloat16"]

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "swish": nn.swish,
    "relu": nn.relu,
    "tanh": nn.tanh,
    "gelu": nn.gelu,
}

PRECISIONS: dict[str, Any] = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


class MLP(nn.Module):
    """Hidden layers of Dense, LayerNorm and activation, then a linear layer; the result is float32.

    Parameters stay in float32; `dtype` is the type that the layers compute in.
    """

    hidden_sizes: Sequence[int]
    num_outputs: int
    activation: Activation = "swish"
    use_layer_norm: bool = True
    last_scale: float = 1.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns [..., num_outputs] for [..., D]."""
        *batch, _ = x.shape
        # Matrix products of two axes: on a CPU a gradient step with a third, of agents, takes half as long again.
        x = x.astype(self.dtype).reshape(-1, x.shape[-1])
        for size in self.hidden_sizes:
            x = nn.Dense(size, dtype=self.dtype)(x)
            if self.use_layer_norm:
                x = nn.LayerNorm(dtype=self.dtype)(x)
            x = ACTIVATIONS[self.activation](x)
        init = nn.initializers.variance_scaling(self.last_scale**2, "fan_in", "truncated_normal")
        x = nn.Dense(self.num_outputs, dtype=self.dtype, kernel_init=init)(x)
        return x.astype(jnp.float32).reshape(*batch, self.num_outputs)


class Joint(nn.Module):
    """A network of two inputs that are concatenated."""

    net: nn.Module

    def __call__(self, first: jax.Array, second: jax.Array) -> jax.Array:
        """Returns the network's output for the two inputs side by side."""
        result: jax.Array = self.net(jnp.concatenate([first, second], axis=-1))
        return result


@dataclass(frozen=True)
class Networks:
    """The three networks of the contrastive methods; any Flax modules with these calls can take their place.

    Observations arrive normalised (if that is switched on) and with the agent's identity appended (teams).
    A discrete action arrives at `phi` as a one-hot vector, a continuous one scaled to [-1, 1].
    """

    policy: nn.Module  # (obs [..., D], goal [..., G]) -> [..., A] logits, or [..., 2A] means and raw log-stds
    phi: nn.Module  # (obs [..., D], action [..., A]) -> [..., Z]
    psi: nn.Module  # (goal [..., G]) -> [..., Z]


@dataclass(frozen=True)
class ActorCritic:
    """The two networks of PPO; any Flax modules with these calls can take their place, as for `Networks`."""

    policy: nn.Module  # (obs [..., D], goal [..., G]) -> [..., A] logits, or [..., 2A] means and raw log-stds
    value: nn.Module  # (obs [..., D], goal [..., G]) -> [..., 1]


def apply(module: nn.Module, params: Any, *inputs: jax.Array) -> jax.Array:
    """Returns the module's output; Flax leaves its type open."""
    outputs: Any = module.apply(params, *inputs)
    return outputs


def check_networks(networks: Networks, obs: jax.Array, goal: jax.Array, action: jax.Array, num_outputs: int) -> None:
    """Raises `UserError` if modules do not return what is read from them; broadcasting would hide it."""
    _check_policy(networks.policy, obs, goal, num_outputs)
    phi, psi = _output_shape("phi", networks.phi, obs, action), _output_shape("psi", networks.psi, goal)
    if phi != psi or phi[:-1] != obs.shape[:-1]:
        raise UserError(f"phi and psi must return one representation per agent of one size; found {phi} and {psi}.")


def check_actor_critic(networks: ActorCritic, obs: jax.Array, goal: jax.Array, num_outputs: int) -> None:
    """Raises `UserError` if modules do not return what is read from them; broadcasting would hide it."""
    _check_policy(networks.policy, obs, goal, num_outputs)
    value = _output_shape("value", networks.value, obs, goal)
    if value != (*obs.shape[:-1], 1):
        raise UserError(f"The value network must return 1 number per agent; found the shape {value}.")


def _check_policy(module: nn.Module, obs: jax.Array, goal: jax.Array, num_outputs: int) -> None:
    policy = _output_shape("policy", module, obs, goal)
    if policy != (*obs.shape[:-1], num_outputs):
        raise UserError(f"The policy network must return {num_outputs} numbers per agent; found the shape {policy}.")


def _output_shape(name: str, module: Any, *inputs: jax.Array) -> tuple[int, ...]:
    """Returns the shape of a module's output; raises `UserError` unless it is one array and parameters suffice for it.

    Training calls a module without random keys and keeps nothing but its parameters.
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"The {name} network must be a Flax module, an instance and not a class; found {module!r}.")
    try:
        variables: Any = jax.eval_shape(module.init, jax.random.key(0), *inputs)
        state = sorted(set(variables) - {"params"})
        output: Any = None if state else jax.eval_shape(module.apply, variables, *inputs)
    except Exception as error:  # whatever a user's module raises
        raise UserError(
            f"The {name} network must run on inputs of the shapes {', '.join(str(x.shape) for x in inputs)} with its "
            f"parameters alone, no dropout; it raised {brief(error)}."
        ) from error
    if state:
        raise UserError(
            f"The {name} network must hold parameters only; found the collections {', '.join(state)}. "
            "Leave out what keeps statistics, such as batch normalisation."
        )
    kind = getattr(output, "dtype", type(output).__name__)
    if not isinstance(output, jax.ShapeDtypeStruct) or not jnp.issubdtype(kind, jnp.floating):
        raise UserError(f"The {name} network must return one array of floats; found {kind}.")
    return tuple(output.shape)


class Torso(NamedTuple):
    """What all networks of a method have in common."""

    hidden_sizes: tuple[int, ...]
    activation: Activation
    use_layer_norm: bool
    dtype: Any  # type that the layers compute in

    def mlp(self, num_outputs: int, last_scale: float = 1.0) -> MLP:
        """Returns a network with these hidden layers."""
        return MLP(
            hidden_sizes=self.hidden_sizes,
            num_outputs=num_outputs,
            activation=self.activation,
            use_layer_norm=self.use_layer_norm,
            last_scale=last_scale,
            dtype=self.dtype,
        )


def make_networks(torso: Torso, *, repr_dim: int, num_policy_outputs: int, policy_last_scale: float) -> Networks:
    """Returns the paper's networks: the same torso three times."""
    return Networks(
        policy=Joint(torso.mlp(num_policy_outputs, policy_last_scale)),
        phi=Joint(torso.mlp(repr_dim)),
        psi=torso.mlp(repr_dim),
    )


def make_actor_critic(torso: Torso, *, num_policy_outputs: int, policy_last_scale: float) -> ActorCritic:
    """Returns the networks of PPO: the same torso twice."""
    return ActorCritic(policy=Joint(torso.mlp(num_policy_outputs, policy_last_scale)), value=Joint(torso.mlp(1)))
