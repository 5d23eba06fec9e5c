"""Writes the tables of figures in README.md and docs/ anew from results/*.json.

    python benchmarks/tables.py

A page says `<!-- table NAME -->` where a table begins and `<!-- end of table -->` where it ends; NAME is a key of
`TABLES`. A test of the docs asks that nothing would change.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
METHODS = {
    "cppo": "CPPO, no reward",
    "ppo": "PPO, dense reward",
    "csac": "CSAC, no reward",
    "icsac": "ICSAC, no reward",
    "cdqn": "CDQN, no reward",
}
LOSSES = {
    "literal": "forward, as in the paper",
    "penalty": "forward + 0.1 logsumexp^2 (default)",
    "symmetric": "symmetric, no penalty",
}
PARTS_OF_START = ("imports", "task", "trace", "lower", "compile", "first_state", "iterate")

Row = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("|" + "|".join(f" {cell} " if cell != "---" else cell for cell in line) + "|" for line in lines)


def learned(rows: list[Row], *, with_method: bool = False) -> str:
    """Returns what `builtin_tasks.py` found, a line for each task and method."""
    head = ["task", "uniform", "sampled", "greedy", "control", "steps per seed", "time, all seeds"]
    return table(
        ["method", *head] if with_method else head,
        [
            ([row["algo"]] if with_method else [])
            + [
                f"`{row['task']}`",
                f"{row['uniform']:.3f}",
                f"{statistics.mean(row['trained']['sampled']):.3f}",
                f"{statistics.mean(row['trained']['greedy']):.3f}",
                f"{statistics.mean(row['control']['sampled']):.3f}",
                f"{row['trained']['steps']:,}",
                f"{row['trained']['seconds']:.0f} s",
            ]
            for row in rows
        ],
    )


def methods(rows: list[Row]) -> str:
    """Returns the win rates of all methods side by side."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    found = {(row["algo"], row["task"]): f"{statistics.mean(row['trained']['sampled']):.3f}" for row in rows}
    return table(
        ["win rate after the same steps", *(f"`{task}`" for task in tasks)],
        [[label, *(found.get((algo, task), "") for task in tasks)] for algo, label in METHODS.items()],
    )


def seeds(machines: dict[str, Row]) -> str:
    """Returns what `seeds.py` found on some machines."""
    return table(
        ["machine", "cost of 8 seeds over one", "steps/s, one seed", "steps/s, all eight"],
        [
            [name, f"{row['cost_ratio']:.2f}", f"{row['steps_per_second_one']:,}", f"{row['steps_per_second_all']:,}"]
            for name, row in machines.items()
        ],
    )


def resets(rows: list[Row]) -> str:
    """Returns what `envs.py` found."""
    return table(
        ["task", "environments", "our steps/s", "the suite's", "ratio", "compile, ours / suite"],
        [
            [
                f"`{row['task']}`",
                str(row["envs"]),
                f"{row['ours']:,}",
                f"{row['suite']:,}",
                f"{row['ratio']:.2f}",
                f"{row['compile_ours']:.0f} s / {row['compile_suite']:.0f} s",
            ]
            for row in rows
        ],
    )


def oracle(rows: list[Row]) -> str:
    """Returns what `critic_oracle.py` found."""
    return table(
        ["gamma", *LOSSES.values()],
        [[str(row["setting"]["gamma"]), *(f"{row['rank_correlation'][loss]:.2f}" for loss in LOSSES)] for row in rows],
    )


def peers(rows: list[Row]) -> str:
    """Returns what `peers.py` found: mean scores, the 95 % interval of their difference, medians of the speeds.

    Beside the ratio of the medians stand the lowest and the highest ratio of two runs that followed each other.
    """
    lines = []
    for row in rows:
        score = ["", "", ""]
        if "score" in row["ours"][0]:
            ours, theirs = ([run["score"] for run in row[side]] for side in ("ours", "theirs"))
            difference, half = interval(ours, theirs)
            score = [
                f"{statistics.mean(ours):.0f}",
                f"{statistics.mean(theirs):.0f}",
                f"{difference:+.0f} ± {half:.0f}",
            ]
        speeds = [[run["steps_per_second"] for run in row[side]] for side in ("ours", "theirs")]
        our_speed, their_speed = (statistics.median(side) for side in speeds)
        ratios = sorted(a / b for a, b in zip(*speeds, strict=True))
        ratio = f"{our_speed / their_speed:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append([row["pair"], *score, f"{our_speed:,.0f}", f"{their_speed:,.0f}", ratio])
    return table(["against", "our score", "theirs", "difference", "our steps/s", "theirs", "ratio"], lines)


def interval(first: list[float], second: list[float]) -> tuple[float, float]:
    """Returns the difference of two means and half the width of its 95 % interval (Welch)."""
    from scipy import stats

    difference = statistics.mean(first) - statistics.mean(second)
    variances = [statistics.variance(x) / len(x) for x in (first, second)]
    if sum(variances) == 0.0:
        return difference, 0.0
    freedom = sum(variances) ** 2 / sum(v**2 / (len(x) - 1) for v, x in zip(variances, (first, second), strict=True))
    return difference, float(stats.t.ppf(0.975, freedom)) * math.sqrt(sum(variances))


def read(name: str) -> Row:
    """Returns one file of results."""
    content: Row = json.loads((ROOT / "results" / f"{name}.json").read_text())
    return content


def read_all(folder: str) -> list[Row]:
    """Returns all files of results in a folder."""
    return [json.loads(path.read_text()) for path in sorted((ROOT / "results" / folder).glob("*.json"))]


def of_methods(*algos: str) -> list[Row]:
    """Returns the rows of some methods."""
    return [row for row in read("builtin_tasks")["rows"] if row["algo"] in algos]


def evaluation(rows: list[Row]) -> str:
    """Returns what `evaluation_share.py` found."""
    return table(
        ["task", "seeds", "one evaluation", "from one to the next", "share"],
        [
            [
                f"`{row['task']}`",
                str(row["seeds"]),
                f"{row['seconds_per_evaluation']:.2f} s",
                f"{row['seconds_between']:.1f} s",
                f"{row['share']:.1%}",
            ]
            for row in rows
        ],
    )


def throughput(rows: list[Row]) -> str:
    """Returns what `throughput.py` found: each phase, and one evaluation, timed by itself over all seeds."""
    phases = ["rollout", "critic", "advantages", "policy", "rest"]

    def line(row: Row) -> list[str]:
        shares = [f"{round(100 * row['phases'][p] / row['iteration_seconds'])}%" for p in phases if row["phases"]]
        fraction, peak = row["fraction_of_floor"], row["peak_bytes"]
        return [
            f"`{row['task']}`",
            row["algo"],
            str(row["seeds"]),
            row["precision"],
            f"{row['steps_per_second']:,}",
            "" if fraction is None else f"{fraction:.1%}",
            " / ".join(shares),
            f"{row['evaluation_seconds']:.2f} s" if "evaluation_seconds" in row else "",
            f"{row['compile_seconds']:.0f} s",
            "" if peak is None else f"{peak / 1e9:.1f} GB",
        ]

    found = ["steps/s", "of the floor", " / ".join(phases), "evaluation", "compile", "memory"]
    return table(["task", "method", "seeds", "precision", *found], [line(row) for row in in_order(rows)])


def kernels(rows: list[Row]) -> str:
    """Returns what the profiles of `throughput.py` found, as shares of the time; kernels may run at once."""
    kinds = ["products", "norm and activation", "copies", "all else"]
    profiled = [row for row in rows if row.get("kernels", {}).get("kinds")]
    return table(
        ["task", "seeds", "kernels per iteration", "mean kernel", *kinds, "none"],
        [
            [
                f"`{row['task']}`",
                str(row["seeds"]),
                f"{row['kernels']['count'] / row['kernels']['iterations']:,.0f}",
                f"{1e6 * seconds_in_kernels(row) / row['kernels']['count']:.1f} µs",
                *(f"{row['kernels']['kinds'].get(kind, 0.0):.0%}" for kind in kinds),
                f"{row['kernels']['idle_share']:.0%}",
            ]
            for row in in_order(profiled)
        ],
    )


def seconds_in_kernels(row: Row) -> float:
    """Returns the durations of all kernels of a profile together; its shares add up to more than 1 if they overlap."""
    return float(row["kernels"]["seconds"] * sum(row["kernels"]["kinds"].values()))


def starts(rows: list[Row]) -> str:
    """Returns what `starts.py` found: seconds until the first iteration has ended; those with a full cache by part."""
    shown = " / ".join(PARTS_OF_START).replace("_", " ").replace("compile", "load")

    def line(row: Row) -> list[str]:
        empty, full = row["empty_cache"], row["full_cache"]
        return [
            f"`{row['task']}`",
            row["preset"],
            row["device"],
            str(row["seeds"]),
            f"{empty['trace'] + empty['lower'] + empty['compile']:.1f} s",
            f"{empty['total']:.1f} s",
            f"{full['total']:.1f} s",
            " / ".join(f"{full[part]:.1f}" for part in PARTS_OF_START),
            f"{full['evaluation']:.1f} s",
        ]

    found = ["compile", "start, empty cache", "start, full cache", shown, "first evaluation"]
    return table(["task", "preset", "device", "seeds", *found], [line(row) for row in in_order(rows)])


def peaks(row: Row) -> str:
    """Returns what `peaks.py` found, beside what `floor.py` reckons with."""
    from floor import H200

    flops = {"bfloat16": "products in bfloat16", "float32": "products in float32, as TF32"}
    lines = [
        [
            name,
            *(f"{machine[dtype] / 1e12:.0f} TFLOP/s" for machine in (row["flops_per_second"], H200.flops_per_second)),
        ]
        for dtype, name in flops.items()
    ]
    bandwidths = (row["bytes_per_second"], H200.bytes_per_second)
    lines.append(["memory, read and written", *(f"{bandwidth / 1e12:.2f} TB/s" for bandwidth in bandwidths)])
    return table([row["device"], "measured", "the floor's"], lines)


def precisions(rows: list[Row]) -> str:
    """Returns what `precision.py` found, each difference with its standard error, and those of eight seeds each."""
    return table(
        ["task", "seeds", "steps per seed", "float32", "bfloat16", "difference", "by eight seeds"],
        [
            [
                f"`{row['task']}`",
                str(row["seeds"]),
                f"{row['steps']:,}",
                *(f"{statistics.mean(row[precision]['sampled']):.3f}" for precision in ("float32", "bfloat16")),
                f"{row['difference']:+.3f} ± {standard_error(row):.3f}",
                ", ".join(f"{difference:+.3f}" for difference in differences(row, group=8)),
            ]
            for row in sorted(rows, key=lambda row: (row["task"], row["seeds"]))
        ],
    )


def differences(row: Row, *, group: int) -> list[float]:
    """Returns how far the means of so many seeds differ, the next ones each time."""
    full, half = row["float32"]["sampled"], row["bfloat16"]["sampled"]
    firsts = range(0, len(full) - group + 1, group)
    return [statistics.mean(half[i : i + group]) - statistics.mean(full[i : i + group]) for i in firsts]


def standard_error(row: Row) -> float:
    """Returns how far the difference of two means over seeds is off by chance."""
    seeds = [row[precision]["sampled"] for precision in ("float32", "bfloat16")]
    return math.sqrt(sum(statistics.variance(rates) / len(rates) for rates in seeds))


def in_order(rows: list[Row]) -> list[Row]:
    """Returns rows of `throughput.py` or `starts.py` in the order in which they are shown."""
    return sorted(rows, key=lambda row: (row["task"], row["algo"], row["seeds"], row["precision"]))


def before(rows: list[Row]) -> str:
    """Returns what `before.py` found: medians of the speeds, and of the ratios within a repeat with their range."""
    return table(
        ["task", "preset", "steps/s before", "steps/s now", "ratio"],
        [
            [
                f"`{row['task']}`",
                row["preset"],
                f"{statistics.median(row['before']):,.0f}",
                f"{statistics.median(row['now']):,.0f}",
                f"{row['median_ratio']:.2f} ({min(row['ratios']):.2f} to {max(row['ratios']):.2f})",
            ]
            for row in rows
        ],
    )


def checkpoints(rows: list[Row]) -> str:
    """Returns what `checkpoints.py` found: seconds from the first evaluation to the last, and how many checkpoints."""

    def told(found: Row) -> str:
        return f"{found['seconds']:.1f} s ({found['checkpoints']})"

    return table(
        ["task", "preset", "seeds", "evaluations", "after every one", "a share of the time", "ratio"],
        [
            [
                f"`{row['task']}`",
                row["preset"],
                str(row["seeds"]),
                str(row["evaluations"]),
                told(row["every"]),
                told(row["share"]),
                f"{row['ratio']:.2f}",
            ]
            for row in in_order(rows)
        ],
    )


TABLES: dict[str, Callable[[], str]] = {
    **{algo: lambda algo=algo: learned(of_methods(algo)) for algo in METHODS},  # type: ignore[misc]
    "baselines": lambda: learned(of_methods("ppo", "csac", "icsac", "cdqn"), with_method=True),
    "methods": lambda: methods(of_methods(*METHODS)),
    "seeds": lambda: seeds({"two CPU cores": read("seeds"), "one H200": read("seeds_gpu")}),
    "resets": lambda: resets(read("envs")["rows"]),
    "oracle": lambda: oracle(read("critic_oracle")["rows"]),
    "peers": lambda: peers(read("peers")["rows"]),
    "evaluation": lambda: evaluation(read("evaluation_share")["rows"]),
    "throughput": lambda: throughput(read_all("throughput")),
    "kernels": lambda: kernels(read_all("throughput")),
    "starts": lambda: starts(read_all("starts")),
    "peaks": lambda: peaks(read("peaks")),
    "precisions": lambda: precisions(read_all("precision")),
    "checkpoints": lambda: checkpoints(read_all("checkpoints")),
    "before": lambda: before(read("before")["rows"]),
}


def filled(page: str) -> str:
    """Returns the text of a page with its tables as the results have them."""
    between = re.compile(r"(<!-- table (\w+) -->\n)(?:(?!<!-- ).)*(<!-- end of table -->)", re.DOTALL)
    return between.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", page)


def main() -> None:
    """Rewrites the pages whose tables have changed."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        before = path.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
