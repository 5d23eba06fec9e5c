"""What checkpoints cost: a training with one after every evaluation, and with as many as keep to a share of the time.

    python benchmarks/checkpoints.py TASK ... [--seeds 10] [--precision bfloat16] [--evaluations 10] [--algo cppo]
                                     [--preset default] [--out FOLDER]

Trains each task twice through `goalward.train`, with evaluations as far apart as the preset has them, a million steps
of each seed at the paper's scale, and writes a file FOLDER/TASK-ALGO-SEEDS-PRECISION[-PRESET].json. Seconds are those
from the first evaluation to the last, in which nothing compiles. `every` is with `checkpoint_share = 1`, `share` with
its default.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from programs import Row, identity, measure_each, parser_of
from tables import checkpoints

import goalward as gw
from goalward.run.config import RunConfig, make_plan
from goalward.run.directory import versions

SHARES = {"every": 1.0, "share": RunConfig.checkpoint_share}


def measure(task: str, options: argparse.Namespace) -> Row:
    """Returns what is written to a task's file."""
    found = {name: trained(task, options, share) for name, share in SHARES.items()}
    ratio = found["every"]["seconds"] / found["share"]["seconds"]
    row = identity(task, options) | {"evaluations": options.evaluations, **found}
    return row | {"ratio": round(ratio, 2), "versions": versions()}


def trained(task: str, options: argparse.Namespace, share: float) -> dict[str, Any]:
    """Returns the seconds from a training's first evaluation to its last, and how many checkpoints were written."""
    whole = make_plan(task=task, algo=options.algo, preset=options.preset).run
    with tempfile.TemporaryDirectory() as folder:
        run = gw.train(
            task,
            algo=options.algo,
            preset=options.preset,
            seeds=options.seeds,
            steps=whole.steps * options.evaluations // whole.num_evaluations,
            out=Path(folder, "run"),
            settings={
                "precision": options.precision,
                "num_evaluations": options.evaluations,
                "keep_checkpoints": options.evaluations + 1,
                "checkpoint_share": share,
                "absolute_factor": 0,
                "render_episodes": 0,
            },
        )
        written = len(list((run.path / "checkpoints").iterdir()))
    return {"seconds": round(run.records[-1]["elapsed"] - run.records[0]["elapsed"], 2), "checkpoints": written}


def said(row: Row) -> str:
    """Returns the figure that matters most."""
    return f"{row['ratio']:.2f} times as long with a checkpoint after every evaluation"


def main(arguments: list[str] | None = None) -> None:
    """Reads what to train, and trains it."""
    parser = parser_of(__doc__, out="results/checkpoints")
    parser.add_argument("--evaluations", type=int, default=10)
    options = parser.parse_args(arguments)
    if options.evaluations < 1:
        parser.error(f"expected --evaluations to be at least 1; found {options.evaluations}")
    try:
        print(checkpoints(measure_each(options, measure, said)))
    except gw.UserError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
