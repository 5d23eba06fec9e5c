"""How fast training is beside an earlier commit of this repository.

    python benchmarks/before.py REVISION [--repeats 3]

The working tree and the commit train the same tasks in turn, each time in a process of its own, the other way round for
every second repeat: the default task with its tuned preset and all its seeds, and a task of a suite with the preset
`quick`. Everything goes through `goalward.train`, as a user's training does. Steps per second are those of the second
half of a run, in which nothing compiles any more; one evaluation of a few episodes and one checkpoint lie within it on
both sides. Prints a table and writes results/before.json.

For a machine that does nothing else: on two busy cores the same code differed from itself by 10 % and 28 % in one
repeat. What HEAD gives against a clean working tree shows how far ratios scatter.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Task, preset, and steps per seed for a second half of some ten seconds or more on two cores.
RUNS = [("toy/rooms", "tuned", 1_310_720), ("smax/3m", "quick", 1_024_000)]
SETTINGS = {"num_evaluations": 2, "eval_episodes": 16, "absolute_factor": 0, "render_episodes": 0}


def compare(task: str, preset: str, steps: int, sources: dict[str, Path], repeats: int) -> dict[str, Any]:
    """Returns one row of the results; `sources` has the folders `before` and `now` to import from."""
    speeds: dict[str, list[float]] = {side: [] for side in sources}
    for repeat in range(repeats):
        for side in sources if repeat % 2 == 0 else reversed(sources):
            speeds[side].append(speed_in_new_process(task, preset, steps, sources[side]))
            print(f"{task} {side}: {speeds[side][-1]:,.0f} steps/s", file=sys.stderr, flush=True)
    ratios = [now / before for now, before in zip(speeds["now"], speeds["before"], strict=True)]
    return {
        "task": task,
        "preset": preset,
        "steps": steps,
        **speeds,
        "ratios": ratios,
        "median_ratio": statistics.median(ratios),
    }


def speed_in_new_process(task: str, preset: str, steps: int, source: Path) -> float:
    """Returns steps per second of the package in `source`."""
    answer = subprocess.run(
        [sys.executable, __file__, "--train", task, preset, str(steps)],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise SystemExit(f"Training {task} from {source} failed:\n{answer.stderr[-3000:]}")
    return float(answer.stdout.splitlines()[-1])


def train(task: str, preset: str, steps: int) -> float:
    """Returns steps per second of the package that is on Python's path; uses only what every commit has."""
    import goalward as gw

    if not Path(gw.__file__).is_relative_to(os.environ["PYTHONPATH"]):  # an installed one came first
        raise SystemExit(f"Expected goalward to be imported from {os.environ['PYTHONPATH']}; found {gw.__file__}.")
    with tempfile.TemporaryDirectory() as folder:
        run = gw.train(task, preset=preset, steps=steps, out=Path(folder) / "run", settings=SETTINGS)
    return speed_of_second_half(run.records)


def speed_of_second_half(records: list[dict[str, Any]]) -> float:
    """Returns steps per second of all seeds between the last two evaluations, from the records of a run."""
    *_, middle, end = sorted({(record["step"], record["elapsed"]) for record in records})
    num_seeds = len({record["seed"] for record in records})
    return num_seeds * (end[0] - middle[0]) / (end[1] - middle[1])


def unpack(revision: str, folder: Path) -> Path:
    """Returns the folder with the package as it was in a commit."""
    archive = git("archive", "--format=tar", revision, "src")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


def git(*arguments: str) -> bytes:
    """Returns what git prints; ends the program with its complaint if it has one."""
    answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if answer.returncode:
        raise SystemExit(f"git {' '.join(arguments)} failed: {answer.stderr.decode().strip()}")
    return answer.stdout


def main(arguments: list[str] | None = None) -> None:
    """Trains once for the comparison, or compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/before.json"))
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.train:
        task, preset, steps = options.train
        print(train(task, preset, int(steps)))
        return
    if not options.revision:
        parser.error("name the commit to compare with")
    if options.repeats < 1:
        parser.error(f"expected --repeats to be at least 1; found {options.repeats}")
    try:
        commit = git("rev-parse", "--verify", f"{options.revision}^{{commit}}").decode().strip()
    except SystemExit as error:
        parser.error(str(error))

    # Not by the processes that train, which import goalward from elsewhere.
    from programs import make_room
    from tables import before

    from goalward import UserError
    from goalward.run.directory import versions, write_json

    try:
        make_room(options.out)
    except UserError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as folder:
        sources = {"before": unpack(commit, Path(folder)), "now": ROOT / "src"}
        rows = [compare(*run, sources, options.repeats) for run in RUNS]
    write_json(options.out, {"before": commit, "rows": rows, "versions": versions()})
    print(before(rows))


if __name__ == "__main__":
    main()
