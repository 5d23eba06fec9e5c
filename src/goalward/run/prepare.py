"""How JAX starts: where compiled programs are kept, that a CPU is as many devices as cores, who else takes part.

Only by what trains or brings a run back, never on import, and only where the user has not said it already.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from goalward.errors import UserError, whole_number
from goalward.run.devices import MOST_CPU_DEVICES, asked_devices, num_cores
from goalward.run.processes import joined

CACHE_VARIABLE = "GOALWARD_CACHE"
_XLA_DEVICES = "--xla_force_host_platform_device_count"
_chosen: Any = jax.config  # whose settings have no types
_UNSET = -1  # JAX's own word for a number of devices that nobody has named
_DEFAULT_MIN_SECONDS = 1.0  # JAX keeps no program that compiles sooner; a start has dozens of those


def prepare(devices: int | None = None) -> None:
    """Sets JAX up and starts it; `devices` as for `train`."""
    with prepared(devices):
        pass


@contextmanager
def prepared(
    devices: int | None = None, join: str | None = None, say: Callable[[str], None] = lambda text: None
) -> Iterator[None]:
    """Sets JAX up and starts it, for a context in which this process works together with those that `join` names.

    `devices` and `join` are as for `train`; `say` tells how the joining goes.
    """
    check_variables()
    _keep_compiled_programs()
    _divide_cpu(asked_devices(devices))
    with joined(join, say):
        yield


def check_variables() -> None:
    """Raises if a variable of the environment has a value that it cannot have."""
    asked_devices(None)
    wish = os.environ.get(CACHE_VARIABLE, "")
    if wish not in ("", "off"):
        raise UserError(
            f"{CACHE_VARIABLE} must be off or not set; found '{wish}'. JAX_COMPILATION_CACHE_DIR names a directory."
        )
    if _chosen.jax_num_cpu_devices != _UNSET:
        _check_number_of_devices("JAX_NUM_CPU_DEVICES", str(_chosen.jax_num_cpu_devices))
    for count in re.findall(rf"{_XLA_DEVICES}=?(\S*)", os.environ.get("XLA_FLAGS", ""))[-1:]:
        _check_number_of_devices(f"{_XLA_DEVICES} in XLA_FLAGS", count.strip("'\""))


def _check_number_of_devices(name: str, text: str) -> None:
    number = whole_number(text)
    if number is None or not 1 <= number <= MOST_CPU_DEVICES:
        raise UserError(f"{name} must be a whole number from 1 to {MOST_CPU_DEVICES}; found '{text}'.")


def _keep_compiled_programs() -> None:
    """Lets JAX keep compiled programs on disk; a directory that cannot be written costs time, not the run."""
    if os.environ.get(CACHE_VARIABLE) == "off":
        return
    is_chosen = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" in os.environ
    if _chosen.jax_persistent_cache_min_compile_time_secs == _DEFAULT_MIN_SECONDS and not is_chosen:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    path = cache_directory()
    is_named = _chosen.jax_compilation_cache_dir is not None
    if is_named or not path.is_absolute():  # without a home there is no place for it
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(path))


def cache_directory() -> Path:
    """Returns where compiled programs are kept."""
    # As the specification has it, a relative path counts as none.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path(os.path.expanduser("~"), ".cache")) / "goalward" / "jax"


def _divide_cpu(devices: int | None) -> None:
    """Makes one device of each core: seeds on devices of their own are faster than seeds that share all cores."""
    count = min(num_cores(), MOST_CPU_DEVICES, devices or MOST_CPU_DEVICES)
    is_chosen = _chosen.jax_num_cpu_devices > 0 or _XLA_DEVICES in os.environ.get("XLA_FLAGS", "")
    if count == 1 or is_chosen:
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # something has been computed already, with the devices that there were
        return
