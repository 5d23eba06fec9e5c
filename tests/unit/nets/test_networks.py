"""Networks: the forward pass against NumPy, types, and the scale of the policy's first outputs."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from goalward.nets.mlp import MLP, Torso, apply, apply_both, in_compute_type, make_networks, stacked

pytestmark = pytest.mark.usefixtures("strict_dtypes")

TORSO = Torso(hidden_sizes=(32,), activation="swish", use_layer_norm=True, dtype=jnp.float32)
SIZES = dict(repr_dim=8, num_policy_outputs=5)


def inputs(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def init_and_apply(module, *arguments):
    """Returns the module's own initial parameters, and its outputs."""

    @jax.jit
    def both(key):
        params = module.init(key, *arguments)
        return params, apply(module, params, *arguments)

    return both(jax.random.key(0))


def random_params(module, *arguments):
    """Returns parameters in the module's shapes and types, biases and scales at random too."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), *arguments)
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), shapes)


NUMPY_ACTIVATIONS = {
    "swish": lambda x: x / (1.0 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "gelu": lambda x: 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3)])
def test_mlp_treats_every_row_alike_whatever_the_axes_before(batch):
    x = inputs(*batch, 4)
    module = MLP((6, 5), 2)
    params = random_params(module, x)
    outputs = jax.jit(module.apply)(params, x)

    assert outputs.shape == (*batch, 2)
    rows = [np.asarray(module.apply(params, row)) for row in x.reshape(-1, 4)]
    np.testing.assert_allclose(np.asarray(outputs).reshape(-1, 2), rows, atol=1e-5)


@pytest.mark.parametrize(
    ("activation", "use_layer_norm"), [("swish", True), ("relu", False), ("tanh", True), ("gelu", False)]
)
def test_mlp_is_dense_layer_norm_activation_and_a_linear_last_layer(activation, use_layer_norm):
    x = inputs(3, 4)
    module = MLP((6, 5), 2, activation, use_layer_norm)
    params = random_params(module, x)
    outputs = jax.jit(module.apply)(params, x)
    layers = params["params"]
    expected = x.astype(np.float64)
    for index in range(2):
        expected = expected @ layers[f"kernel_{index}"]
        if use_layer_norm:
            bias, scale, shift = layers[f"affine_{index}"]
            centred = expected + bias - (expected + bias).mean(-1, keepdims=True)
            expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * scale + shift
        else:
            expected = expected + layers[f"bias_{index}"]
        expected = NUMPY_ACTIVATIONS[activation](expected)
    expected = expected @ layers["kernel_2"] + layers["bias_2"]
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_a_fresh_layer_norm_does_nothing_but_normalise():
    params, _ = init_and_apply(MLP((6,), 2), inputs(3, 4))
    np.testing.assert_array_equal(params["params"]["affine_0"], [[0.0] * 6, [1.0] * 6, [0.0] * 6])


def test_half_precision_is_for_the_layers_only():
    x = inputs(16, 4)
    module = MLP((32, 32), 3, dtype=jnp.bfloat16)
    params = random_params(module, x)
    outputs = jax.jit(module.apply)(params, x)
    assert outputs.dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    exact = np.asarray(jax.jit(MLP((32, 32), 3).apply)(params, x))
    error = np.abs(np.asarray(outputs) - exact).max() / np.abs(exact).max()
    # bfloat16 has 8 bits: close to float32, and not equal to it.
    assert 1e-4 < error < 0.05


@pytest.mark.parametrize(
    "shapes", [((4, 3), (4, 2)), ((1, 4, 3), (5, 1, 2)), ((4, 3), (5, 4, 2)), ((3,), (4, 2), (1, 1))]
)
def test_a_network_of_several_inputs_reads_them_side_by_side_repeated_where_they_are_one_for_all(shapes):
    parts = [inputs(*shape, seed=i) for i, shape in enumerate(shapes)]
    module = MLP((8, 8), 2)
    batch = np.broadcast_shapes(*(x.shape[:-1] for x in parts))
    side_by_side = np.concatenate([np.broadcast_to(x, (*batch, x.shape[-1])) for x in parts], -1)
    params = random_params(module, *parts)
    expected = jax.jit(module.apply)(params, side_by_side)
    np.testing.assert_allclose(jax.jit(module.apply)(params, *parts), expected, rtol=1e-5, atol=1e-5)


class Sum(nn.Module):
    """A module of a user's: it adds its inputs, which must have the same axes."""

    @nn.compact
    def __call__(self, first, second):
        return first + second


def test_a_users_own_network_gets_inputs_of_equal_axes():
    first, second = inputs(1, 4, 3), inputs(5, 1, 3, seed=1)
    np.testing.assert_allclose(apply(Sum(), {}, first, second), first + second)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_parameters_in_the_compute_type_give_the_same_outputs(dtype):
    module, x = MLP((16, 16), 3, dtype=dtype), inputs(4, 3)
    params = random_params(module, x)
    converted = in_compute_type(module, params)
    assert {leaf.dtype for name, leaf in converted["params"].items() if name.startswith("kernel")} == {jnp.dtype(dtype)}
    np.testing.assert_array_equal(apply(module, converted, x), apply(module, params, x))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_two_networks_computed_as_a_batch_of_two_give_what_each_gives_alone(dtype):
    module = MLP((16, 16), 3, dtype=dtype)
    of_first, of_second = (inputs(2, 4, 3), inputs(2, 4, 5, seed=1)), (inputs(2, 4, 6, seed=2),)
    params = random_params(module, *of_first), random_params(module, *of_second)
    alone = apply(module, params[0], *of_first), apply(module, params[1], *of_second)
    together = jax.jit(lambda: stacked(module, params, (of_first, of_second)))()
    for found, expected in zip(together, alone, strict=True):
        assert found.shape == (2, 4, 3)
        np.testing.assert_allclose(found, expected, atol=0.05 if dtype == jnp.bfloat16 else 1e-5)


@pytest.mark.parametrize(("width", "products"), [(16, 3), (24, 6)])
def test_on_a_gpu_two_networks_of_the_same_layers_share_their_products(monkeypatch, width, products):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    modules = MLP((16, 16), 3), MLP((16, width), 3)
    x, y = (inputs(2, 4, 3),), (inputs(2, 4, 6),)
    params = tuple(random_params(module, *rows) for module, rows in zip(modules, (x, y), strict=True))

    def both():
        return apply_both(modules, params, (x, y))

    assert str(jax.make_jaxpr(both)()).count("dot_general[") == products
    for found, module, own, rows in zip(both(), modules, params, (x, y), strict=True):
        np.testing.assert_allclose(found, apply(module, own, *rows), atol=1e-5)


def deviation_from_uniform(policy_last_scale):
    """Returns the largest difference between a fresh policy's probabilities and 1/5."""
    networks = make_networks(TORSO, **SIZES, policy_last_scale=policy_last_scale)
    _, outputs = init_and_apply(networks.policy, inputs(64, 6), inputs(64, 2, seed=1))
    weights = np.exp(np.asarray(outputs))
    return np.abs(weights / weights.sum(-1, keepdims=True) - 0.2).max()


def test_a_small_scale_of_the_last_layer_makes_the_first_policy_nearly_uniform():
    assert deviation_from_uniform(0.01) < 0.02
    assert deviation_from_uniform(1.0) > 0.1


def test_the_scale_of_the_last_layer_is_the_standard_deviation_of_its_outputs():
    # Fan-in scaling keeps unit-variance features at unit variance; `last_scale` multiplies that.
    x = inputs(256, 512)
    for scale in (1.0, 0.1):
        _, outputs = init_and_apply(MLP((), 64, last_scale=scale), x)
        np.testing.assert_allclose(np.asarray(outputs).std(), scale, rtol=0.1)


def test_encoders_map_to_one_space_and_keep_leading_axes():
    networks = make_networks(TORSO, **SIZES, policy_last_scale=0.01)
    obs, action, goal = inputs(2, 3, 6), inputs(2, 3, 5), inputs(2, 3, 2)
    key = jax.random.key(0)
    shapes = [
        jax.eval_shape(lambda m=module, x=arguments: m.init_with_output(key, *x)[0]).shape
        for module, arguments in [
            (networks.phi, (obs, action)),
            (networks.psi, (goal,)),
            (networks.policy, (obs, goal)),
        ]
    ]
    assert shapes == [(2, 3, 8), (2, 3, 8), (2, 3, 5)]
