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

try:  # JAX means to drop this backend one day; the plain path remains
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plt
except ImportError:  # pragma: no cover
    pl = plt = None  # type: ignore[assignment]

EPSILON = 1e-6  # under the root, added to the variance

# What one program of a kernel works on: so many rows at once, and so many times one after the other. The next rows are
# fetched before the last ones are computed. Of ten choices among the fastest on an H200, for one seed and for ten.
_ROWS, _TILES, _WARPS = 4, 2, 4
_WIDTHS = (64, 128, 256, 512, 1024)  # powers of two, as Triton needs them

Activate = Callable[[jax.Array], jax.Array]


def initial_affine(key: jax.Array, width: int) -> jax.Array:
    """Returns [3, H] for a hidden layer: its bias, and the scale and the shift of its norm."""
    del key
    return jnp.stack([jnp.zeros(width), jnp.ones(width), jnp.zeros(width)])


def norm_activate(x: jax.Array, affine: jax.Array, activate: Activate) -> jax.Array:
    """Returns [R, H], `activate(norm(x + bias) * scale + shift)` for products x [R, H] and affine [3, H].

    Computed in float32, returned in the type of `x`.
    """
    if jax.default_backend() == "gpu" and fits_kernels(*x.shape):
        return fused(x, affine, activate, False)
    return plain(x, affine, activate)


def fits_kernels(num_rows: int, width: int) -> bool:
    """Returns whether the kernels take arrays of this shape."""
    return plt is not None and width in _WIDTHS and num_rows % (_ROWS * _TILES) == 0 and num_rows > 0


def plain(x: jax.Array, affine: jax.Array, activate: Activate) -> jax.Array:
    """See `norm_activate`; in plain JAX."""
    standard, _, scale, shift = _standardise(x, [affine[i] for i in range(3)])
    return activate(standard * scale + shift).astype(x.dtype)


def _standardise(x: jax.Array, affine: list[jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns rows x + bias in units of their deviation from their mean, one over that deviation, scale and shift."""
    bias, scale, shift = (jnp.broadcast_to(part[None, :], x.shape) for part in affine)
    x = x.astype(jnp.float32) + bias
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + EPSILON)
    return centred * inverse, inverse, scale, shift


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def fused(x: jax.Array, affine: jax.Array, activate: Activate, interpret: bool) -> jax.Array:
    """See `norm_activate`; by the kernels, or with `interpret` by what JAX makes of them on a CPU."""
    call = _call(partial(_forward_kernel, activate=activate), x.shape[0], interpret)
    row, whole = _specs(x.shape[1])
    return call(in_specs=[row, whole], out_specs=row, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, affine)


def _forward(
    x: jax.Array, affine: jax.Array, activate: Activate, interpret: bool
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return fused(x, affine, activate, interpret), (x, affine)


def _backward(
    activate: Activate, interpret: bool, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, affine = saved
    num_rows, width = x.shape
    call = _call(partial(_backward_kernel, activate=activate), num_rows, interpret)
    row, whole = _specs(width)
    dx, partial_sums = call(
        in_specs=[row, whole, row],
        out_specs=[row, pl.BlockSpec((None, 3, width), lambda i: (i, 0, 0))],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((num_rows // (_ROWS * _TILES), 3, width), jnp.float32),
        ],
    )(x, affine, grad)
    return dx, jnp.sum(partial_sums, axis=0)


fused.defvjp(_forward, _backward)


def _call(kernel: Any, num_rows: int, interpret: bool) -> Any:
    return partial(
        pl.pallas_call,
        kernel,
        grid=(num_rows // (_ROWS * _TILES),),
        compiler_params=plt.CompilerParams(num_warps=_WARPS, num_stages=1),
        interpret=interpret,
    )


def _specs(width: int) -> tuple[Any, Any]:
    """Returns the part of [R, H] that one program sees, and all of [3, H]."""
    return pl.BlockSpec((_ROWS * _TILES, width), lambda i: (i, 0)), pl.BlockSpec((3, width), lambda i: (0, 0))


def _tiles(*refs: Any) -> Any:
    """Yields (where, values of each ref there), the values fetched one tile ahead of their use."""
    places = [pl.ds(i * _ROWS, _ROWS) for i in range(_TILES)]
    fetched = [ref[places[0], :] for ref in refs]
    for place, following in zip(places, [*places[1:], None], strict=True):
        values = fetched
        if following is not None:
            fetched = [ref[following, :] for ref in refs]
        yield place, values


def _forward_kernel(x_ref: Any, affine_ref: Any, y_ref: Any, *, activate: Activate) -> None:
    affine = [affine_ref[i, :] for i in range(3)]
    for place, (x,) in _tiles(x_ref):
        standard, _, scale, shift = _standardise(x, affine)
        y_ref[place, :] = activate(standard * scale + shift).astype(y_ref.dtype)


def _backward_kernel(
    x_ref: Any, affine_ref: Any, grad_ref: Any, dx_ref: Any, sums_ref: Any, *, activate: Activate
) -> None:
    affine = [affine_ref[i, :] for i in range(3)]
    sums = [jnp.zeros_like(affine[0])] * 3
    for place, (x, grad) in _tiles(x_ref, grad_ref):
        standard, inverse, scale, shift = _standardise(x, affine)
        _, pull_back = jax.vjp(activate, standard * scale + shift)
        (d_activated,) = pull_back(grad.astype(jnp.float32))
        d_standard = d_activated * scale
        mean = jnp.mean(d_standard, axis=-1, keepdims=True)
        along = jnp.mean(d_standard * standard, axis=-1, keepdims=True)
        dx = (d_standard - mean - standard * along) * inverse
        dx_ref[place, :] = dx.astype(dx_ref.dtype)
        parts = (dx, d_activated * standard, d_activated)
        sums = [total + jnp.sum(part, axis=0) for total, part in zip(sums, parts, strict=True)]
    for i, total in enumerate(sums):
        sums_ref[i, :] = total
