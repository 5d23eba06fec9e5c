"""Loads the marl_eval.json of a report with MARL-eval itself, and compares its interquartile means with the report's.

MARL-eval pins old versions of what it needs, hence an environment of its own:

    python3 -m venv marl-eval
    marl-eval/bin/pip install --no-deps id-marl-eval==0.0.4 rliable==1.2.0
    marl-eval/bin/pip install colorama tqdm 'arch<8' 'pandas<3' absl-py seaborn matplotlib jax
    marl-eval/bin/python tests/report/run_marl_eval.py REPORT_DIRECTORY
"""

import csv
import json
import sys
from pathlib import Path

from marl_eval.utils.data_processing_utils import create_matrices_for_rliable, data_process_pipeline
from rliable import metrics

report = Path(sys.argv[1])
raw = json.loads((report / "marl_eval.json").read_text())
with (report / "tables" / "aggregates.csv").open() as handle:
    ours = {(row["suite"], row["method"]): float(row["IQM"]) for row in csv.DictReader(handle)}
for suite in raw:
    data = data_process_pipeline(raw, metrics_to_normalize=[])  # anew, since the next line changes it
    matrices, _ = create_matrices_for_rliable(data, suite, metrics_to_normalize=[])
    for method, scores in matrices["mean_win_rate"].items():
        theirs = metrics.aggregate_iqm(scores)
        print(f"{suite:12} {method:8} {theirs:.6f} {ours[suite, method]:.6f}")
        assert abs(theirs - ours[suite, method]) < 1e-9
