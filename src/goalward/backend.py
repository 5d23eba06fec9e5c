"""What kind of device a program is traced for."""

from __future__ import annotations

from typing import Any

import jax

_chosen: Any = jax.config  # whose settings have no types


def is_gpu() -> bool:
    """Returns whether what is traced now will run on a GPU: the default device is one.

    JAX's default backend is the machine's best; the user, or a context, may have chosen another device.
    """
    chosen = _chosen.jax_default_device
    platform = chosen if isinstance(chosen, str) else getattr(chosen, "platform", None)
    return (platform or jax.default_backend()) in ("gpu", "cuda", "rocm")


def has_default_device() -> bool:
    """Returns whether the user, or a context, has chosen the device to compute on."""
    return _chosen.jax_default_device is not None


def default_device() -> jax.Device:
    """Returns the device that computes what nobody lays on others."""
    chosen = _chosen.jax_default_device
    if isinstance(chosen, jax.Device):
        return chosen
    return jax.local_devices(backend=chosen)[0]
