"""Bias, layer norm and activation of a hidden layer in one pass over memory.

XLA writes several intermediate arrays of a layer norm and its gradient to memory and reads them back. On a GPU two
Triton kernels, one per direction, read each row once and write it once. Everywhere else, and for shapes that they do
not take, the same mathematics is plain JAX, which is also what the kernels are tested against.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from goalward.backend import is_gpu
from goalward.shards import num_parts

try:  # JAX means to drop this backend one day; the plain path remains
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plt
except ImportError:  # pragma: no cover
    pl = plt = None  # type: ignore[assignment]

EPSILON = 1e-6  # under the root, added to the variance

# One program of a kernel works on so many rows, a smaller number where there would be too few programs to fill the
# device; on a few of them at once, the next ones fetched before the last are computed. The number of rows decides how
# many partial sums the backward kernel leaves. Chosen from timings on an H200 of each kernel alone and of whole
# iterations with one seed and with ten.
_ROWS_OF_PROGRAM = (16, 8, 4)
_PROGRAMS_THAT_FILL = 256
_ROWS_FORWARD, _ROWS_BACKWARD, _WARPS = 4, 1, 2
_WIDTHS = (64, 128, 256, 512, 1024)  # powers of two, as Triton needs them

Activate = Callable[[jax.Array], jax.Array]
Arrays = tuple[jax.Array, ...]


def initial_affine(key: jax.Array, width: int) -> jax.Array:
    """Returns [3, H] for a hidden layer: its bias, and the scale and the shift of its norm."""
    del key
    return jnp.stack([jnp.zeros(width), jnp.ones(width), jnp.zeros(width)])


def norm_activate(x: jax.Array, affine: jax.Array, activate: Activate) -> jax.Array:
    """Returns [R, H], `activate(norm(x + bias) * scale + shift)` for products x [R, H] and affine [3, H].

    Computed in float32, returned in the type of `x`.
    """
    # The compiler can split an array of environments for operations of its own, and would gather it for a kernel.
    if is_gpu() and fits_kernels(*x.shape) and num_parts() == 1:
        return fused(x, affine, activate, False)
    return plain(x, affine, activate)


def fits_kernels(num_rows: int, width: int) -> bool:
    """Returns whether the kernels take arrays of this shape."""
    return plt is not None and width in _WIDTHS and num_rows % max(_ROWS_OF_PROGRAM) == 0 and num_rows > 0


def plain(x: jax.Array, affine: jax.Array, activate: Activate) -> jax.Array:
    """See `norm_activate`; in plain JAX."""
    bias, scale, shift = _rows_of(affine, x.shape)
    centred, _, inverse = _centre(x.astype(jnp.float32) + bias)
    return activate(centred * inverse * scale + shift).astype(x.dtype)


def _rows_of(affine: Any, shape: tuple[int, ...]) -> list[jax.Array]:
    """Returns bias, scale and shift for every row, [R, H] each."""
    return [jnp.broadcast_to(affine[i, :][None, :], shape) for i in range(3)]


def _centre(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns rows [R, H] around zero, the mean that they had, and one over their standard deviation, [R, 1] each."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    return centred, mean, jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + EPSILON)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def fused(x: jax.Array, affine: jax.Array, activate: Activate, interpret: bool) -> jax.Array:
    """See `norm_activate`; by the kernels, or with `interpret` by what JAX makes of them on a CPU."""
    forward = _whole_batch(partial(_call_forward, activate=activate, interpret=interpret, is_differentiated=False))
    (y,) = forward(x[None], affine[None])
    return y[0]


def _forward(x: jax.Array, affine: jax.Array, activate: Activate, interpret: bool) -> tuple[jax.Array, Arrays]:
    forward = _whole_batch(partial(_call_forward, activate=activate, interpret=interpret, is_differentiated=True))
    y, statistics = forward(x[None], affine[None])
    return y[0], (x, affine, statistics[0])


def _backward(activate: Activate, interpret: bool, saved: Arrays, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    backward = _whole_batch(partial(_call_backward, activate=activate, interpret=interpret))
    dx, d_affine = backward(*(array[None] for array in (*saved, grad)))
    return dx[0], d_affine[0]


fused.defvjp(_forward, _backward)


def _whole_batch(function: Callable[..., Arrays]) -> Callable[..., Arrays]:
    """Returns a function of arrays [B, ...] that is called once for all axes of `vmap`, with B as large as they are.

    So it knows how much there is to do: the rows of one seed or of ten.
    """
    whole = jax.custom_batching.custom_vmap(function)

    @whole.def_vmap
    def merged(axis_size: int, is_mapped: list[bool], *arrays: jax.Array) -> tuple[Arrays, tuple[bool, ...]]:
        repeated = [
            x if mapped else jnp.broadcast_to(x[None], (axis_size, *x.shape))
            for x, mapped in zip(arrays, is_mapped, strict=True)
        ]
        results = whole(*(x.reshape(-1, *x.shape[2:]) for x in repeated))
        return tuple(y.reshape(axis_size, -1, *y.shape[1:]) for y in results), (True,) * len(results)

    return whole


@partial(jax.jit, static_argnames=("activate", "interpret", "is_differentiated"))  # so one kernel serves all layers
def _call_forward(
    x: jax.Array, affine: jax.Array, *, activate: Activate, interpret: bool, is_differentiated: bool
) -> Arrays:
    """Returns y [B, R, H], and if a gradient follows the mean and one over the deviation of each row, [B, 2, R]."""
    num_batches, num_rows, _ = x.shape
    rows, whole, pairs = _specs(x)
    statistics = jax.ShapeDtypeStruct((num_batches, 2, num_rows), jnp.float32)
    results = _call(_forward_kernel, activate, x, interpret)(
        in_specs=[rows, whole],
        out_specs=[rows, pairs] if is_differentiated else [rows],
        out_shape=[_like(x), statistics] if is_differentiated else [_like(x)],
    )(x, affine)
    return tuple(results)


@partial(jax.jit, static_argnames=("activate", "interpret"))
def _call_backward(*arrays: jax.Array, activate: Activate, interpret: bool) -> Arrays:
    """Returns the gradients of x [B, R, H] and affine [B, 3, H]."""
    x, affine, statistics, grad = arrays
    num_batches, num_rows, width = x.shape
    rows, whole, pairs = _specs(x)
    partial_sums = jax.ShapeDtypeStruct((num_batches, num_rows // _rows_of_program(x), 3, width), jnp.float32)
    dx, partial_sums = _call(_backward_kernel, activate, x, interpret)(
        in_specs=[rows, whole, pairs, rows],
        out_specs=[rows, pl.BlockSpec((None, None, 3, width), lambda i, b: (b, i, 0, 0))],
        out_shape=[_like(x), partial_sums],
    )(x, affine, statistics, grad)
    return dx, jnp.sum(partial_sums, axis=1)


def _call(kernel: Any, activate: Activate, x: jax.Array, interpret: bool) -> Any:
    return partial(
        pl.pallas_call,
        partial(kernel, activate=kernel_activation(activate, x.dtype, interpret)),
        grid=(x.shape[1] // _rows_of_program(x), x.shape[0]),
        compiler_params=plt.CompilerParams(num_warps=_WARPS, num_stages=1),
        interpret=interpret,
    )


def _rows_of_program(x: jax.Array) -> int:
    num_rows = x.shape[0] * x.shape[1]
    return next((rows for rows in _ROWS_OF_PROGRAM if num_rows >= rows * _PROGRAMS_THAT_FILL), _ROWS_OF_PROGRAM[-1])


def kernel_activation(activate: Activate, dtype: Any, interpret: bool) -> Activate:
    """Returns what a kernel activates rows with.

    The kernels wait for arithmetic as much as for memory. Where results are rounded to bfloat16, swish is computed from
    the device's instruction for tanh instead of an exponential and a division. Its relative error of 2^-11 makes that
    of swish smaller than the rounding for all x > -2, and at most 2^-12 |x| in absolute terms below that.
    """
    if activate is not jax.nn.swish or dtype != jnp.bfloat16:
        return activate
    tanh = jnp.tanh if interpret else _approximate_tanh

    def swish(x: jax.Array) -> jax.Array:
        half = 0.5 * x
        return half + half * tanh(half)

    return swish


@jax.custom_jvp
def _approximate_tanh(x: jax.Array) -> jax.Array:
    result: jax.Array = plt.approx_tanh(x)
    return result


@_approximate_tanh.defjvp
def _tangent_of_tanh(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    y = _approximate_tanh(*primals)
    return y, (1.0 - y * y) * tangents[0]


def _specs(x: jax.Array) -> tuple[Any, Any, Any]:
    """Returns what one program sees: its part of [B, R, H], its [3, H] of [B, 3, H], and its part of [B, 2, R]."""
    num_rows, width = _rows_of_program(x), x.shape[2]
    return (
        pl.BlockSpec((None, num_rows, width), lambda i, b: (b, i, 0)),
        pl.BlockSpec((None, 3, width), lambda i, b: (b, 0, 0)),
        pl.BlockSpec((None, 2, num_rows), lambda i, b: (b, 0, i)),
    )


def _like(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _tiles(rows_at_once: int, *refs: Any) -> Any:
    """Yields (where, values of each ref there), the values fetched one tile ahead of their use."""
    places = [pl.ds(start, rows_at_once) for start in range(0, refs[0].shape[0], rows_at_once)]
    fetched = [ref[places[0], :] for ref in refs]
    for place, following in zip(places, [*places[1:], None], strict=True):
        values = fetched
        if following is not None:
            fetched = [ref[following, :] for ref in refs]
        yield place, values


def _forward_kernel(x_ref: Any, affine_ref: Any, y_ref: Any, *statistics_ref: Any, activate: Activate) -> None:
    """Writes the statistics too if there is a place for them, which is when a gradient follows."""
    bias, scale, shift = _rows_of(affine_ref, (_ROWS_FORWARD, x_ref.shape[1]))
    for place, (x,) in _tiles(_ROWS_FORWARD, x_ref):
        centred, mean, inverse = _centre(x.astype(jnp.float32) + bias)
        y_ref[place, :] = activate(centred * inverse * scale + shift).astype(y_ref.dtype)
        for ref in statistics_ref:
            ref[0, place] = mean[:, 0]
            ref[1, place] = inverse[:, 0]


def _backward_kernel(*refs: Any, activate: Activate) -> None:
    x_ref, affine_ref, statistics_ref, grad_ref, dx_ref, sums_ref = refs
    bias, scale, shift = _rows_of(affine_ref, (_ROWS_BACKWARD, x_ref.shape[1]))
    sums = [jnp.zeros(x_ref.shape[1])] * 3
    for place, (x, grad) in _tiles(_ROWS_BACKWARD, x_ref, grad_ref):
        mean, inverse = (statistics_ref[i, place][:, None] for i in range(2))
        standard = (x.astype(jnp.float32) + bias - mean) * inverse
        _, pull_back = jax.vjp(activate, standard * scale + shift)
        (d_activated,) = pull_back(grad.astype(jnp.float32))
        d_standard = d_activated * scale
        along_mean = jnp.mean(d_standard, axis=-1, keepdims=True)
        along_row = jnp.mean(d_standard * standard, axis=-1, keepdims=True)
        dx = (d_standard - along_mean - standard * along_row) * inverse
        dx_ref[place, :] = dx.astype(dx_ref.dtype)
        parts = (dx, d_activated * standard, d_activated)
        sums = [total + jnp.sum(part, axis=0) for total, part in zip(sums, parts, strict=True)]
    for i, total in enumerate(sums):
        sums_ref[i, :] = total
