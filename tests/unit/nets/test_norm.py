"""Bias, layer norm and activation: the kernels, interpreted, against plain JAX, and both against NumPy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, use_abstract_mesh

from goalward.nets.mlp import ACTIVATIONS
from goalward.nets.norm import EPSILON, fits_kernels, fused, kernel_activation, norm_activate, plain
from goalward.shards import ENVS

pytestmark = pytest.mark.usefixtures("strict_dtypes")

ROWS, WIDTH = 32, 64  # several programs of a kernel


def arrays(dtype=jnp.float32, batch=()):
    """Returns products, affine and a gradient of the outputs."""
    rng = np.random.default_rng(0)
    x, grad = (jnp.asarray(rng.normal(1.0, 2.0, (*batch, ROWS, WIDTH)), dtype) for _ in range(2))
    return x, jnp.asarray(rng.normal(size=(*batch, 3, WIDTH)), jnp.float32), grad


def outputs_and_gradients(function, x, affine, grad):
    outputs, pull_back = jax.vjp(function, x, affine)
    return outputs, *pull_back(grad)


def test_plain_is_norm_and_activation_in_numpy():
    x, affine, _ = arrays()
    bias, scale, shift = np.asarray(affine, np.float64)
    rows = np.asarray(x, np.float64) + bias
    standard = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + EPSILON)
    expected = np.tanh(standard * scale + shift)
    np.testing.assert_allclose(plain(x, affine, jnp.tanh), expected, atol=1e-5)


def test_a_row_far_from_zero_keeps_its_precision():
    # The mean of squares minus the square of the mean would leave nothing of a deviation of 1 around 10,000.
    x, affine, _ = arrays()
    np.testing.assert_allclose(plain(x + 1e4, affine, jnp.tanh), plain(x, affine, jnp.tanh), atol=5e-3)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_kernels_give_the_outputs_and_gradients_of_plain_jax(activation, dtype):
    activate = ACTIVATIONS[activation]
    arguments = arrays(dtype)
    expected = outputs_and_gradients(lambda x, affine: plain(x, affine, activate), *arguments)
    found = outputs_and_gradients(lambda x, affine: fused(x, affine, activate, True), *arguments)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        # A number of bfloat16 may be rounded to its neighbour.
        tolerance = 1e-2 if one.dtype == jnp.bfloat16 else 1e-5
        np.testing.assert_allclose(one.astype(jnp.float32), other.astype(jnp.float32), rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="the kernels themselves need a GPU")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_kernels_on_a_gpu_give_what_they_give_interpreted(dtype):
    arguments = arrays(dtype)
    found, expected = (
        outputs_and_gradients(lambda x, affine, i=i: fused(x, affine, ACTIVATIONS["swish"], i), *arguments)
        for i in (False, True)
    )
    tolerance = 5e-2 if dtype == jnp.bfloat16 else 1e-4  # of sums of 32 rows too
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.astype(jnp.float32), other.astype(jnp.float32), rtol=tolerance, atol=tolerance)


def test_only_what_is_rounded_to_bfloat16_is_approximated():
    for name, dtype in (("swish", jnp.float32), ("relu", jnp.bfloat16)):
        assert kernel_activation(ACTIVATIONS[name], dtype, False) is ACTIVATIONS[name]


def test_swish_by_an_approximate_tanh_has_the_slope_of_swish(monkeypatch):
    monkeypatch.setattr("goalward.nets.norm.plt.approx_tanh", jnp.tanh)  # an instruction that a CPU does not have
    swish = kernel_activation(ACTIVATIONS["swish"], jnp.bfloat16, False)
    x = jnp.linspace(-8.0, 8.0, 33)
    for function in (lambda f: f, lambda f: jax.vmap(jax.grad(f))):
        np.testing.assert_allclose(function(swish)(x), function(ACTIVATIONS["swish"])(x), atol=1e-6)


@pytest.mark.parametrize("batch", [(3,), (2, 64)])  # few rows, and enough of them for larger programs
def test_kernels_take_each_seed_with_its_own_parameters(batch):
    arguments = arrays(batch=batch)
    both = []
    for function in (plain, lambda *row: fused(*row, True)):

        def one_seed(x, affine, grad, function=function):
            activate = ACTIVATIONS["swish"]
            return outputs_and_gradients(lambda x, affine: function(x, affine, activate), x, affine, grad)

        for _ in batch:
            one_seed = jax.vmap(one_seed)
        both.append(one_seed(*arguments))
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)


def test_kernels_take_one_input_with_the_parameters_of_several_seeds():
    x, affine, _ = arrays()
    scales = jnp.stack([affine, 2.0 * affine])
    for function in (lambda x, affine: fused(x, affine, jnp.tanh, True), lambda x, affine: plain(x, affine, jnp.tanh)):
        together = jax.vmap(function, in_axes=(None, 0))(x, scales)
        for one, own in zip(together, scales, strict=True):
            np.testing.assert_allclose(one, plain(x, own, jnp.tanh), atol=1e-5)


def lowered_for_h200(function, *arguments):
    """Returns the program as text; without a GPU newer versions of JAX want to be told of one."""
    device = AbstractDevice("NVIDIA H200", num_cores=None, platform="gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(("batch", "programs"), [((), (192, 1)), ((10,), (48, 10)), ((10, 2), (48, 20))])
def test_kernels_are_made_for_a_gpu_and_larger_where_there_is_much_to_do(batch, programs):
    def gradients(x, affine, grad):
        return outputs_and_gradients(lambda x, affine: fused(x, affine, ACTIVATIONS["swish"], False), x, affine, grad)

    x = jax.ShapeDtypeStruct((*batch, 768, 512), jnp.bfloat16)
    affine = jax.ShapeDtypeStruct((*batch, 3, 512), jnp.float32)
    for _ in batch:
        gradients = jax.vmap(gradients)
    text = lowered_for_h200(gradients, x, affine, x)
    assert [(int(x), int(y)) for x, y in re.findall(r"grid_x = (\d+) : i32, grid_y = (\d+)", text)] == [programs] * 2


def test_layers_of_one_shape_share_a_kernel():
    """Making one takes longer than anything else that a start with a full cache does."""

    def three_layers(x, affine, grad):
        def layers(x, affine):
            for _ in range(3):
                x = fused(x, affine, ACTIVATIONS["swish"], False)
            return x

        return outputs_and_gradients(layers, x, affine, grad)

    text = lowered_for_h200(three_layers, *arrays())
    assert len(re.findall(r"grid_x = \d+", text)) == 2  # one for each direction


@pytest.mark.parametrize(("parts", "kernels"), [(1, 1), (2, 0)])
def test_a_program_that_splits_environments_does_without_kernels(monkeypatch, parts, kernels):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    mesh = Mesh(np.array(jax.devices("cpu")[:parts]), (ENVS,), axis_types=(AxisType.Auto,))
    x, affine, _ = arrays()
    with jax.set_mesh(mesh):
        text = str(jax.make_jaxpr(lambda x, affine: norm_activate(x, affine, jnp.tanh))(x, affine))

    assert text.count("pallas_call[") == kernels


def test_a_cpu_that_was_chosen_does_without_kernels(monkeypatch):
    """As where a policy acts on the CPU of a machine that has a GPU."""
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    x, affine, _ = arrays()
    for chosen in ("cpu", jax.devices("cpu")[0]):
        with jax.default_device(chosen):
            np.testing.assert_array_equal(norm_activate(x, affine, jnp.tanh), plain(x, affine, jnp.tanh))


@pytest.mark.parametrize(
    ("shape", "fits"), [((768, 512), True), ((768, 500), False), ((776, 512), False), ((0, 512), False)]
)
def test_kernels_take_whole_tiles_of_widths_that_are_powers_of_two(shape, fits):
    assert fits_kernels(*shape) is fits
