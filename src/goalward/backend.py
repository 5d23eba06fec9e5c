"""What kind of device a program is traced for."""

from __future__ import annotations

from typing import Any

import jax


def is_gpu() -> bool:
    """Returns whether what is traced now will run on a GPU: the default device is one.

    JAX's default backend is the machine's best; the user, or a context, may have chosen another device.
    """
    chosen: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
    platform = chosen if isinstance(chosen, str) else getattr(chosen, "platform", None)
    return (platform or jax.default_backend()) in ("gpu", "cuda", "rocm")
