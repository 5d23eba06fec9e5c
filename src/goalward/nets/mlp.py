"""Networks as multilayer perceptrons, and the interface for a user's own."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from goalward.backend import is_gpu
from goalward.errors import UserError, brief
from goalward.nets.norm import initial_affine, norm_activate

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
    """Hidden layers of a product, LayerNorm and activation, then a linear layer; the result is float32.

    Parameters stay in float32; `dtype` is the type that the layers compute in. What a layer adds and scales by is one
    array, `affine [3, H]` (see `norm.initial_affine`), or `bias [H]` where there is no norm: fewer and larger arrays
    are fewer and larger steps of the optimiser.
    """

    hidden_sizes: Sequence[int]
    num_outputs: int
    activation: Activation = "swish"
    use_layer_norm: bool = True
    last_scale: float = 1.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        """Returns [..., num_outputs] for inputs [..., D1], [..., D2] side by side, of broadcasting leading axes."""
        sizes = (sum(x.shape[-1] for x in inputs), *self.hidden_sizes)
        params: dict[str, jax.Array] = {}
        for i, size in enumerate(self.hidden_sizes):
            params[f"kernel_{i}"] = self.param(f"kernel_{i}", nn.initializers.lecun_normal(), (sizes[i], size))
            if self.use_layer_norm:
                params[f"affine_{i}"] = self.param(f"affine_{i}", initial_affine, size)
            else:
                params[f"bias_{i}"] = self.param(f"bias_{i}", nn.initializers.zeros_init(), (size,))
        last = len(self.hidden_sizes)
        init = nn.initializers.variance_scaling(self.last_scale**2, "fan_in", "truncated_normal")
        params[f"kernel_{last}"] = self.param(f"kernel_{last}", init, (sizes[-1], self.num_outputs))
        params[f"bias_{last}"] = self.param(f"bias_{last}", nn.initializers.zeros_init(), (self.num_outputs,))
        batch = jnp.broadcast_shapes(*(x.shape[:-1] for x in inputs))
        return self.after_first_product(params, self.first_product(params, *inputs)).reshape(*batch, self.num_outputs)

    def first_product(self, params: Mapping[str, jax.Array], *inputs: jax.Array) -> jax.Array:
        """Returns [R, H], the inputs times the first kernel, R rows for all leading axes."""
        kernel = params["kernel_0"].astype(self.dtype)
        inputs = tuple(x.astype(self.dtype) for x in inputs)
        if len({x.shape[:-1] for x in inputs}) == 1:
            # Matrix products of two axes: on a CPU a gradient step with a third, of agents, takes half as long again.
            x = jnp.concatenate(inputs, axis=-1)
            return x.reshape(-1, x.shape[-1]) @ kernel
        # Each input by its part of the kernel and then repeated: an observation is multiplied once for all actions.
        batch = jnp.broadcast_shapes(*(x.shape[:-1] for x in inputs))
        parts = jnp.split(kernel, list(itertools.accumulate(x.shape[-1] for x in inputs))[:-1])
        products = []
        for x, part in zip(inputs, parts, strict=True):
            product = (x.reshape(-1, x.shape[-1]) @ part).reshape(*x.shape[:-1], -1)
            products.append(_repeat(product, batch))
        total = functools.reduce(jnp.add, products)
        return total.reshape(-1, total.shape[-1])

    def after_first_product(self, params: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
        """Returns [R, num_outputs] float32 for what `first_product` returned."""
        for i in range(len(self.hidden_sizes)):
            x = self._activated(params, i, x)
            x = x @ params[f"kernel_{i + 1}"].astype(self.dtype)
        bias = params[f"bias_{len(self.hidden_sizes)}"]
        return x.astype(jnp.float32) + jnp.broadcast_to(bias[None, :], x.shape)

    def _activated(self, params: Mapping[str, jax.Array], i: int, x: jax.Array) -> jax.Array:
        activate = ACTIVATIONS[self.activation]
        if self.use_layer_norm:
            return norm_activate(x, params[f"affine_{i}"], activate)
        bias = params[f"bias_{i}"].astype(self.dtype)
        return activate(x + jnp.broadcast_to(bias[None, :], x.shape))


def _repeat(x: jax.Array, batch: tuple[int, ...]) -> jax.Array:
    """Returns [*batch, D] for x [..., D]."""
    x = x.reshape((1,) * (len(batch) + 1 - x.ndim) + x.shape)
    return jnp.broadcast_to(x, (*batch, x.shape[-1]))


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
    """Returns the module's output for inputs of broadcasting leading axes; a user's own module gets them repeated."""
    if not isinstance(module, MLP):
        batch = jnp.broadcast_shapes(*(x.shape[:-1] for x in inputs))
        inputs = tuple(_repeat(x, batch) for x in inputs)
    outputs: Any = module.apply(params, *inputs)  # Flax leaves its type open
    return outputs


def in_compute_type(module: nn.Module, params: Any) -> Any:
    """Returns parameters for many calls without a gradient: kernels in the type that they are multiplied in.

    Inside a loop XLA would convert them anew at every turn.
    """
    if not isinstance(module, MLP):
        return params

    def convert(path: Any, leaf: jax.Array) -> jax.Array:
        return leaf.astype(module.dtype) if path[-1].key.startswith("kernel") else leaf

    return jax.tree.map_with_path(convert, params)


def apply_both(
    modules: tuple[nn.Module, nn.Module],
    params: tuple[Any, Any],
    inputs: tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]],
) -> tuple[jax.Array, jax.Array]:
    """Returns the outputs of two modules for inputs of the same leading axes.

    On a GPU two networks of the same layers are computed as a batch of two: half as many kernels, twice the size.
    """
    first, second = modules
    if isinstance(first, MLP) and isinstance(second, MLP) and first == second and is_gpu():
        return stacked(first, params, inputs)
    return apply(first, params[0], *inputs[0]), apply(second, params[1], *inputs[1])


def stacked(module: MLP, params: tuple[Any, Any], inputs: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the outputs of one module for two sets of parameters and inputs; see `apply_both`."""
    rows = [jnp.concatenate(x, axis=-1).astype(module.dtype) for x in inputs]
    layers = [dict(in_compute_type(module, p)["params"]) for p in params]
    # Zeros make up for the difference in width: cheaper than to multiply apart and to copy both results into one array.
    width = max(x.shape[-1] for x in rows)
    for x, layer in zip(rows, layers, strict=True):
        layer["kernel_0"] = jnp.pad(layer["kernel_0"], ((0, width - x.shape[-1]), (0, 0)))
    padded = [jnp.pad(x, (*((0, 0),) * (x.ndim - 1), (0, width - x.shape[-1]))) for x in rows]
    both = {name: jnp.stack([layer[name] for layer in layers]) for name in layers[0]}

    def network(params: Any, x: jax.Array) -> jax.Array:
        return module.after_first_product(params, module.first_product(params, x)).reshape(*x.shape[:-1], -1)

    first, second = jax.vmap(network)(both, jnp.stack(padded))
    return first, second


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
        policy=torso.mlp(num_policy_outputs, policy_last_scale),
        phi=torso.mlp(repr_dim),
        psi=torso.mlp(repr_dim),
    )


def make_actor_critic(torso: Torso, *, num_policy_outputs: int, policy_last_scale: float) -> ActorCritic:
    """Returns the networks of PPO: the same torso twice."""
    return ActorCritic(policy=torso.mlp(num_policy_outputs, policy_last_scale), value=torso.mlp(1))
