"""What JAX is told before it starts, seen from processes in which it has not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import goalward as gw
from goalward.run.prepare import cache_directory, prepare

XLA_DEVICES = "--xla_force_host_platform_device_count"
# Prints what JAX has come to think, and compiles something that takes next to no time.
SCRIPT = """
import json, os
os.sched_getaffinity = lambda process: range(3)
import jax, jax.numpy as jnp
{before}
from goalward.run.prepare import prepare
prepare({devices})
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((4, 4)))
print(json.dumps([jax.config.jax_compilation_cache_dir, jax.device_count()]))
"""


def after(home, devices=None, before="", **variables):
    """Returns the directory of compiled programs, how many are in it, and the number of devices."""
    unset = ("JAX_", "GOALWARD_", "XLA_", "XDG_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    environment = {**inherited, "JAX_PLATFORMS": "cpu", "HOME": str(home), **variables}
    script = SCRIPT.format(devices=devices, before=before)
    command = [sys.executable, "-W", "error", "-c", script]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    directory, num_devices = json.loads(answer.stdout)
    return directory, [] if directory is None else list(Path(directory).glob("jit_*")), num_devices


def test_programs_are_kept_and_every_core_is_a_device(tmp_path):
    directory, kept, num_devices = after(tmp_path)

    assert directory == str(tmp_path / ".cache" / "goalward" / "jax")
    assert kept
    assert num_devices == 3


def test_what_was_computed_before_stays_and_later_programs_are_kept(tmp_path):
    _, kept, num_devices = after(tmp_path, before="jnp.ones(3) + 1")

    assert kept
    assert num_devices == 1


def test_the_users_own_directory_stays(tmp_path):
    directory, kept, num_devices = after(tmp_path, devices=2, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))

    assert directory == str(tmp_path / "own")
    assert kept
    assert num_devices == 2


def test_the_users_own_threshold_stays(tmp_path):
    assert after(tmp_path, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="1")[1] == []


def test_nothing_is_kept_where_that_is_off(tmp_path):
    assert after(tmp_path, GOALWARD_CACHE="off")[0] is None
    assert not (tmp_path / ".cache").exists()


@pytest.mark.parametrize(
    "variables",
    [
        {"JAX_NUM_CPU_DEVICES": "5"},
        {"XLA_FLAGS": f"{XLA_DEVICES}=0 {XLA_DEVICES}=5"},
        {"XLA_FLAGS": f"{XLA_DEVICES}='5'"},
    ],
)
def test_the_users_number_of_devices_stays_and_an_unwritable_home_is_no_obstacle(tmp_path, variables):
    (tmp_path / ".cache").write_text("a file where a directory should be")
    directory, _, num_devices = after(tmp_path, **variables)

    assert directory is None
    assert num_devices == 5


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"JAX_NUM_CPU_DEVICES": "0"}, "JAX_NUM_CPU_DEVICES must be a whole number from 1 to 1024; found '0'."),
        ({"JAX_NUM_CPU_DEVICES": "-3"}, "from 1 to 1024; found '-3'."),
        ({"JAX_NUM_CPU_DEVICES": "99999999999999999999"}, "from 1 to 1024; found '99999999999999999999'."),
        (
            {"XLA_FLAGS": f"{XLA_DEVICES}=00"},
            f"{XLA_DEVICES} in XLA_FLAGS must be a whole number from 1 to 1024; found '00'",
        ),
        ({"XLA_FLAGS": f"{XLA_DEVICES}=2 {XLA_DEVICES}=many"}, "1024; found 'many'"),
        ({"XLA_FLAGS": f"{XLA_DEVICES}=1025"}, "1024; found '1025'"),
        ({"XLA_FLAGS": f"{XLA_DEVICES} 2"}, "1024; found ''"),
    ],
)
def test_numbers_of_devices_that_no_cpu_has_are_refused(tmp_path, variables, sentence):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        after(tmp_path, **variables)

    assert sentence in caught.value.stderr


def test_an_environment_is_not_blamed_for_a_variable(goalward, monkeypatch):
    monkeypatch.setenv("GOALWARD_DEVICES", "none")
    code, _, err = goalward("check", "toy/rooms")

    assert code == 2
    assert "GOALWARD_DEVICES must be a whole number of at least 1; found 'none'" in err


@pytest.mark.parametrize(
    ("variable", "base"), [("/elsewhere", "/elsewhere"), ("relative", "/home/me/.cache"), ("", "/home/me/.cache")]
)
def test_the_directory_follows_the_systems_convention(monkeypatch, variable, base):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", variable)

    assert cache_directory() == Path(base, "goalward", "jax")


def test_without_a_home_nothing_is_kept(monkeypatch):
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user that the system does not know
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        prepare()
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_wish_that_is_not_understood_is_refused(monkeypatch):
    monkeypatch.setenv("GOALWARD_CACHE", "0")
    with pytest.raises(gw.UserError, match="GOALWARD_CACHE must be off or not set; found '0'"):
        prepare()


def test_the_directory_of_these_tests_stays():
    before = jax.config.jax_compilation_cache_dir
    prepare()

    assert before is not None
    assert jax.config.jax_compilation_cache_dir == before
