"""What a device does at best: large matrix products, and passes over its memory. floor.py reckons with an H200's.

    python benchmarks/peaks.py [--size 8192] [--repeats 20]

Random numbers, since products of zeros take less power and run faster. Written to results/peaks.json:

- `flops_per_second`: of products of square matrices, by the precision of the networks; float32 as JAX multiplies it by
  default, which is TF32 on such a GPU;
- `bytes_per_second`: read and written by passes over 2^31 bytes.

Both are the fastest of the repeats, each of ten products or passes after each other. That is meant for a GPU; a CPU is
done within a minute with `--size 1024 --repeats 3`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from programs import make_room
from tables import peaks
from timing import call_seconds

import goalward as gw
from goalward.run.directory import versions, write_json

TIMES = 10
PASSED_BYTES = 2**31


def flops_per_second(dtype: str, size: int, repeats: int) -> float:
    """Returns the operations of products [size, size] x [size, size] in a second."""
    left, right = (jax.random.normal(key, (size, size), dtype) for key in jax.random.split(jax.random.key(0)))
    shrunk = right / jnp.asarray(size**0.5, dtype)  # so that numbers stay as large as they are
    return 2 * size**3 / seconds_of(lambda x: x @ shrunk, left, repeats)


def bytes_per_second(num_bytes: int, repeats: int) -> float:
    """Returns the bytes that a pass over memory reads and writes in a second."""
    numbers = jax.random.normal(jax.random.key(0), (num_bytes // 4,))
    return 2 * numbers.nbytes / seconds_of(jnp.negative, numbers, repeats)


def seconds_of(function: Callable[[jax.Array], jax.Array], argument: jax.Array, repeats: int) -> float:
    """Returns the least seconds of a function, called several times on its own results."""
    compiled = jax.jit(function)  # by itself: a loop over it would be timed with the copies that it makes

    def chain() -> jax.Array:
        result = argument
        for _ in range(TIMES):  # the device is still busy with one when the host asks for the next
            result = compiled(result)
        return result

    return min(call_seconds(chain, repeats)) / TIMES


def main(arguments: list[str] | None = None) -> None:
    """Measures this machine's device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/peaks.json"))
    options = parser.parse_args(arguments)
    for name in ("size", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"expected --{name} to be at least 1; found {getattr(options, name)}")
    try:
        make_room(options.out)
    except gw.UserError as error:
        parser.error(str(error))
    found = {
        "flops_per_second": {
            dtype: flops_per_second(dtype, options.size, options.repeats) for dtype in ("bfloat16", "float32")
        },
        "bytes_per_second": bytes_per_second(PASSED_BYTES, options.repeats),
        "size": options.size,
        "versions": versions(),
        "device": jax.devices()[0].device_kind,
    }
    write_json(options.out, found)
    print(peaks(found))


if __name__ == "__main__":
    main()
