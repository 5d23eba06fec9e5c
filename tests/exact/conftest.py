"""One short finished run for all tests of this folder."""

import os
import shutil
import sys
from pathlib import Path

import jax
import pytest
from exact_runs import SETTINGS

import goalward as gw


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run; tests leave it as it is."""
    path = tmp_path_factory.mktemp("finished") / "run"
    return gw.train("toy/rooms", preset="quick", settings=SETTINGS, out=path)


# An environment of the user's own: "near" is the built-in task, so its program is in the cache too.
MODULE = """
from pathlib import Path
import goalward as gw

Path(__file__).with_suffix(".imported").touch()


def rooms(goal="far"):
    return gw.make("toy/rooms", size=9 if goal == "near" else 5)
"""


@pytest.fixture(scope="session")
def own_environment(tmp_path_factory):
    """A folder with a module, and a run on the environment that is made by `own_rooms_module:rooms`."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_rooms_module.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(folder), *sys.path])
        patch.setattr(sys, "dont_write_bytecode", True)
        run = gw.train("own_rooms_module:rooms", goal="near", preset="quick", settings=SETTINGS, out=folder / "run")
    return folder, run


@pytest.fixture
def copy_of_finished(finished, tmp_path):
    """The directory of the finished run, to be changed at will."""
    return Path(shutil.copytree(finished.path, tmp_path / "copy"))


@pytest.fixture
def environment():
    """Variables for a process of its own, which shares the compilation cache."""
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
