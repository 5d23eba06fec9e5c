"""Packages whose own code is put off, seen from processes in which nothing has been imported yet."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from goalward.envs.imports import quiet_import

PACKAGE = {
    "heavy/__init__.py": """
import os, time
print("heavy runs")
if "FAIL" in os.environ:
    raise RuntimeError("broken")
__version__ = 1
__all__ = ["built"]
from heavy.inner import light
time.sleep(0.2)
built = light.value + 1
""",
    "heavy/inner/__init__.py": "print('inner runs')\nsize = 5\n",
    "heavy/inner/light.py": "value = 1\nimport heavy.inner.light as itself\n",
}
POSTPONED = """
from goalward.envs.imports import postpone
postpone("heavy", "heavy.inner")
from heavy.inner.light import value
print(value)
"""


@pytest.fixture
def printed(tmp_path):
    """Returns the lines that a script prints beside the package."""
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def run(script):
        command = [sys.executable, "-W", "error", "-c", script]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]

    return run


def test_a_submodule_is_imported_without_its_packages(printed):
    assert printed("from heavy.inner.light import value; print(value)") == ["heavy runs", "inner runs", "1"]
    assert printed(POSTPONED) == ["1"]


def test_a_package_runs_once_when_something_is_asked_of_it(printed):
    script = POSTPONED + "import heavy\nprint(heavy.built, heavy.built, heavy.inner.light.value, heavy.inner.size)"

    assert printed(script) == ["1", "heavy runs", "inner runs", "2 2 1 5"]


@pytest.mark.parametrize(
    "script", ["from heavy import *", "from heavy import built", "import heavy\nbuilt = heavy.__version__ + 1"]
)
def test_however_it_is_asked(printed, script):
    assert printed(f"{POSTPONED}\n{script}\nprint(built)") == ["1", "heavy runs", "2"]


def test_threads_wait_for_the_first_that_asks(printed):
    script = """
from concurrent.futures import ThreadPoolExecutor
import heavy
with ThreadPoolExecutor(8) as pool:
    print(set(pool.map(lambda _: heavy.built, range(8))))
"""
    assert printed(POSTPONED + script) == ["1", "heavy runs", "{2}"]


def test_a_package_that_fails_says_so_every_time(printed):
    script = """
import heavy, os
os.environ["FAIL"] = "1"
for _ in range(2):
    try:
        heavy.built
    except RuntimeError as error:
        print(error)
"""
    assert printed(POSTPONED + script) == ["1", "heavy runs", "broken", "heavy runs", "broken"]


def test_what_it_does_not_have_is_missed_as_ever(printed):
    script = """
import heavy
print(hasattr(heavy, "__wrapped__"))
try:
    heavy.missing
except AttributeError as error:
    print(error)
"""
    assert printed(POSTPONED + script) == ["1", "False", "heavy runs", "module 'heavy' has no attribute 'missing'"]


def test_a_package_that_is_imported_already_stays(printed):
    script = "import heavy\nbefore = heavy\n" + POSTPONED + "import heavy\nprint(heavy is before, heavy.built)"

    assert printed(script) == ["heavy runs", "inner runs", "1", "True 2"]


@pytest.mark.parametrize("task", ["smax/3m", "jaxnav/4-agents"])
def test_jaxmarl_is_whole_after_one_of_its_tasks(task):
    pytest.importorskip("jaxmarl")
    script = f"""
import sys
import goalward as gw
env = gw.make("{task}")
assert "jaxmarl.environments.overcooked" not in sys.modules
import jaxmarl
from goalward.envs.smax import Suite
print()
print(type(jaxmarl.make("HeuristicEnemySMAX")) is Suite, "overcooked" in jaxmarl.registered_envs)
"""
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)

    assert answer.stdout.split("\n")[-2] == "True True"


def test_one_thread_at_a_time_is_quiet():
    """Otherwise a thread that leaves last would put the other's silence back for good."""
    before, inside = sys.stdout, threading.Event()

    def follow():
        with quiet_import():
            inside.set()

    with ThreadPoolExecutor(1) as pool:
        with quiet_import():
            follower = pool.submit(follow)
            assert not inside.wait(0.2)
        follower.result(5.0)
    assert inside.is_set()
    assert sys.stdout is before


def test_threads_may_make_tasks_of_all_suites_at_once():
    for package in ("brax", "jaxmarl", "jumanji", "navix"):
        pytest.importorskip(package)
    script = """
import sys
from concurrent.futures import ThreadPoolExecutor
import goalward as gw
stdout = sys.stdout
tasks = ["jaxgcrl/ant", "smax/3m", "navix/fourrooms", "jaxnav/4-agents", "connector/7x7x5a"]
with ThreadPoolExecutor(len(tasks)) as pool:
    made = [env.spec.name for env in pool.map(gw.make, tasks)]
print(made == tasks, sys.stdout is stdout)
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert answer.stdout == "True True\n"
