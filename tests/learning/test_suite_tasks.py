"""Every task of the suites trains, evaluates, saves and is filmed; two iterations, so nothing is learned.

Compilation takes minutes, hence slow: `pytest -m slow tests/learning/test_suite_tasks.py`.
"""

import numpy as np
import pytest
from PIL import Image

import goalward as gw
from goalward.envs.tasks import TASKS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("suite_arithmetic")]


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.suite != "toy"])
def test_two_quick_iterations(name, tmp_path):
    if not TASKS[name].is_installed:
        pytest.skip(f"needs {TASKS[name].package}")
    run = gw.train(name, preset="quick", seeds=1, steps=2 * 16 * 32, out=tmp_path / "run")

    last = run.records[-1]
    assert last["step"] == 2 * 16 * 32
    assert last["rollout/reused_starts"] == 0
    assert all(np.isfinite(value) for value in last.values() if isinstance(value, float))
    with Image.open(tmp_path / "run" / "media" / "episodes.gif") as film:
        assert film.n_frames > 1
    spec = gw.make(name).spec
    action = gw.load(run.path).act(
        np.zeros((spec.num_agents, spec.obs_dim)), np.zeros((spec.num_agents, spec.goal_dim))
    )
    assert action.shape[0] == spec.num_agents
