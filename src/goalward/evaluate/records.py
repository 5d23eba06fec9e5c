"""Results in the raw-data layout of MARL-eval, built from the lines of metrics.jsonl."""

from __future__ import annotations

from typing import Any


def marl_eval_layout(
    records: list[dict[str, Any]], absolute: dict[int, dict[str, float]] | None, *, task: str, algo: str
) -> dict[str, Any]:
    """Returns environment -> task -> algorithm -> seed -> evaluation, every metric a list.

    Args:
        records: one per evaluation and seed.
        absolute: seed -> metrics of its best policy; without it the last evaluation stands in.
        task: "suite/task"; a name without a suite counts as its own.
        algo: the algorithm's name.

    """
    suite, _, name = task.rpartition("/")
    seeds: dict[str, dict[str, Any]] = {}
    for record in records:
        seed = seeds.setdefault(f"seed_{record['seed']}", {})
        seed[f"step_{record['evaluation']}"] = {
            "step_count": record["step"],
            "elapsed_time": record["elapsed"],
            **_metrics(record),
        }
        seed["absolute_metrics"] = _metrics((absolute or {}).get(record["seed"], record))
    return {suite or name: {name: {algo: seeds}}}


def _metrics(record: dict[str, Any]) -> dict[str, list[float]]:
    """Returns what the policy was measured by: of the records, the keys without a group and the task's own."""
    names = ["win_rate", "return", "length", *(name for name in record if name.startswith("task/"))]
    return {name.removeprefix("task/"): [record[name]] for name in names}
