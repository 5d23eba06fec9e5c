"""Networks: the forward pass against NumPy, types, and the scale of the policy's first outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from goalward.nets.mlp import MLP, Joint, Torso, apply, make_networks

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
        dense = layers[f"Dense_{index}"]
        expected = expected @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"])
        if use_layer_norm:
            centred = expected - expected.mean(-1, keepdims=True)
            norm = layers[f"LayerNorm_{index}"]
            expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
            expected = expected * np.asarray(norm["scale"]) + np.asarray(norm["bias"])
        expected = NUMPY_ACTIVATIONS[activation](expected)
    expected = expected @ np.asarray(layers["Dense_2"]["kernel"]) + np.asarray(layers["Dense_2"]["bias"])
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    assert set(layers) == {"Dense_0", "Dense_1", "Dense_2"} | (
        {"LayerNorm_0", "LayerNorm_1"} if use_layer_norm else set()
    )


def test_half_precision_is_for_the_layers_only():
    x = inputs(16, 4)
    # Flax's layer norm promotes bfloat16 to float32 for its statistics.
    with jax.numpy_dtype_promotion("standard"):
        module = MLP((32, 32), 3, dtype=jnp.bfloat16)
        params = random_params(module, x)
        outputs = jax.jit(module.apply)(params, x)
    assert outputs.dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    exact = np.asarray(jax.jit(MLP((32, 32), 3).apply)(params, x))
    error = np.abs(np.asarray(outputs) - exact).max() / np.abs(exact).max()
    # bfloat16 has 8 bits: close to float32, and not equal to it.
    assert 1e-4 < error < 0.05


def test_a_joint_network_reads_its_two_inputs_side_by_side():
    first, second = inputs(4, 3), inputs(4, 2, seed=1)
    net = MLP((8,), 2)
    params = random_params(Joint(net), first, second)
    inner = {"params": params["params"]["net"]}
    expected = jax.jit(net.apply)(inner, np.concatenate([first, second], -1))
    np.testing.assert_allclose(jax.jit(Joint(net).apply)(params, first, second), expected, rtol=1e-5)


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
