"""Hands a study to Slurm: some jobs, each of which works on the whole of it.

Jobs share a study as processes on one machine do: a cell that another one is running is left to it. So it does not
matter how many there are, when they start, or whether one is ended early. Partition, time limit, GPUs and the like are
Slurm's own variables: SBATCH_PARTITION, SBATCH_TIMELIMIT, SBATCH_GRES.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from goalward.errors import UserError
from goalward.studies.declare import Study
from goalward.studies.directory import StudyDirectory


def submit(study: Study, directory: StudyDirectory, arguments: Sequence[str], num_jobs: int) -> list[str]:
    """Returns the numbers of the jobs that were submitted, each a `goalward study` with these arguments."""
    if num_jobs < 1:
        raise UserError(f"--jobs must be at least 1; found {num_jobs}.")
    if shutil.which("sbatch") is None:
        raise UserError("--on slurm needs Slurm's command sbatch, which is not on this machine.")
    logs = directory.path / "logs"
    logs.mkdir(exist_ok=True)
    command = [
        "sbatch",
        "--parsable",
        f"--job-name=goalward-{study.name}",
        f"--output={logs.resolve()}/slurm-%j.txt",
        f"--wrap={shlex.join([sys.executable, '-m', 'goalward.cli', 'study', *arguments])}",
    ]
    return [_submit_one(command) for _ in range(num_jobs)]


def _submit_one(command: list[str]) -> str:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise UserError(f"Slurm refused the job: {' '.join(answer.stderr.split()) or 'it did not say why'}")
    return answer.stdout.strip().partition(";")[0]
