"""Which kernels take a GPU's time, from a trace of JAX's profiler."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jax

# Parts of the names of kernels, by what they do; those of XLA's own fusions do not say more.
KINDS = {
    "products": ("gemm", "nvjet", "cutlass"),
    "norm and activation": ("_forward_kernel", "_backward_kernel"),
    "copies": ("memcpy", "memset"),
}


class Kernel(NamedTuple):
    """One run of a kernel, in nanoseconds."""

    name: str
    start: float
    end: float


def busiest_kernels(folder: Path, most: int = 15) -> dict[str, Any]:
    """Returns the kernels that took most time in the newest trace below `folder`, and the share without any.

    `seconds` is from the start of the first kernel to the end of the last; shares are of that. Kernels on several
    streams may run at once, so that shares can add up to more than one. Where no GPU was traced there are no kernels.
    """
    # Not the JSON beside it, which stops after a million events.
    traces = sorted(folder.glob("**/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not traces:
        raise SystemExit(f"Expected a trace of the profiler below {folder}; found none.")
    kernels = on_gpu_streams(jax.profiler.ProfileData.from_file(str(traces[-1])))
    if not kernels:
        return {"seconds": 0.0, "idle_share": None, "count": 0, "kinds": {}, "top": []}
    whole = max(kernel.end for kernel in kernels) - min(kernel.start for kernel in kernels)
    times, counts = Counter[str](), Counter(kernel.name for kernel in kernels)
    for kernel in kernels:
        times[kernel.name] += kernel.end - kernel.start  # type: ignore[assignment]
    kinds = Counter[str]()
    for name, time in times.items():
        kinds[kind_of(name)] += time / whole  # type: ignore[assignment]
    return {
        "seconds": whole / 1e9,
        "idle_share": 1.0 - covered(kernels) / whole,
        "count": len(kernels),
        "kinds": dict(kinds),
        "top": [
            {"name": name, "count": counts[name], "seconds": time / 1e9, "share": time / whole}
            for name, time in times.most_common(most)
        ],
    }


def kind_of(name: str) -> str:
    """Returns what a kernel does, as far as its name says."""
    return next((kind for kind, parts in KINDS.items() if any(part in name.lower() for part in parts)), "all else")


def on_gpu_streams(trace: Any) -> list[Kernel]:
    """Returns what ran on the streams of GPUs; their other lines repeat it by module and operation."""
    return [
        Kernel(event.name, event.start_ns, event.start_ns + event.duration_ns)
        for plane in trace.planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream #")
        for event in line.events
    ]


def covered(kernels: list[Kernel]) -> float:
    """Returns the time in which at least one kernel ran."""
    total, reached = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        total += max(0.0, kernel.end - max(kernel.start, reached))
        reached = max(reached, kernel.end)
    return total
