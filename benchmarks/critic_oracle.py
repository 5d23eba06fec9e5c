"""How well contrastive critics rank actions, on tabular problems whose answer is known.

    python benchmarks/critic_oracle.py

The large version of tests/learning/test_oracle.py: all goals, 256 x 4096 steps, 15,000 updates, three discounts.
About two minutes on a GPU, far longer on a CPU. Prints a table and writes results/critic_oracle.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tables import oracle

from goalward.run.directory import versions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "learning"))
from tabular import NUM_STATES, Setting, rank_correlations


def main() -> None:
    """Prints a table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gammas", type=float, nargs="+", default=[0.4, 0.7, 0.9])
    parser.add_argument("--updates", type=int, default=15_000)
    parser.add_argument("--out", type=Path, default=Path("results/critic_oracle.json"))
    options = parser.parse_args()
    rows = []
    for gamma in options.gammas:
        setting = Setting(
            gamma=gamma,
            num_goals=NUM_STATES,
            num_envs=4096,
            batch_size=512,
            num_updates=options.updates,
            learning_rate=1e-3,
            hidden_sizes=(256, 256),
            repr_dim=64,
            num_relabellings=8,
        )
        rows.append({"setting": asdict(setting), "rank_correlation": rank_correlations(setting)})
        print(rows[-1], file=sys.stderr, flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"rows": rows, "versions": versions()}, indent=2) + "\n")
    print(oracle(rows))


if __name__ == "__main__":
    main()
