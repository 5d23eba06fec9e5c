"""Which kernels take a GPU's time, from a trace of JAX's profiler."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def busiest_kernels(folder: Path, most: int = 15) -> dict[str, Any]:
    """Returns the kernels that took most time in the newest trace below `folder`, and the share without any.

    `seconds` is from the start of the first kernel to the end of the last; shares are of that. Kernels on several
    streams may run at once, so that shares can add up to more than one. Where no GPU was traced there are no kernels.
    """
    traces = sorted(folder.glob("**/*.trace.json.gz"), key=lambda path: path.stat().st_mtime)
    if not traces:
        raise SystemExit(f"Expected a trace of the profiler below {folder}; found none.")
    with gzip.open(traces[-1], "rt", encoding="utf-8") as handle:
        kernels = on_gpu_streams(json.load(handle)["traceEvents"])
    if not kernels:
        return {"seconds": 0.0, "idle_share": None, "top": []}
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in kernels]
    whole = max(end for _, end in spans) - min(start for start, _ in spans)
    times, counts = Counter[str](), Counter(event["name"] for event in kernels)
    for event in kernels:
        times[event["name"]] += event["dur"]
    return {
        "seconds": whole / 1e6,  # a trace counts in microseconds
        "idle_share": 1.0 - covered(spans) / whole,
        "top": [
            {"name": name, "count": counts[name], "seconds": time / 1e6, "share": time / whole}
            for name, time in times.most_common(most)
        ],
    }


def on_gpu_streams(events: list[Event]) -> list[Event]:
    """Returns the events that ran on a stream of a GPU; its other threads repeat them by module and operation."""
    named = [event for event in events if event.get("ph") == "M"]
    gpus = {
        event["pid"]
        for event in named
        if event["name"] == "process_name" and event["args"]["name"].startswith("/device:GPU")
    }
    streams = {
        (event["pid"], event["tid"])
        for event in named
        if event["name"] == "thread_name" and event["pid"] in gpus and event["args"]["name"].startswith("Stream #")
    }
    return [event for event in events if event.get("ph") == "X" and (event["pid"], event["tid"]) in streams]


def covered(spans: list[tuple[float, float]]) -> float:
    """Returns the length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
