"""Strict arithmetic and one compilation cache for all tests."""

import os
import re
from pathlib import Path

# Most of the tests' time is compilation, and code that runs once need not be optimised. The emitters of fused loops
# cost half of the rest; a jaxlib without that option ignores it. Programs in one piece take a tenth less of the cores
# than in several that are compiled at once. Read when jax starts.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_backend_optimization_level=0",
        "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
)

# Eight devices are made of the CPU, of which a run takes one unless a test asks for more. Not in jax's own settings:
# processes that tests start are to have as many, since what was compiled for others would be compiled again.
os.environ |= {"JAX_NUM_CPU_DEVICES": "8", "GOALWARD_DEVICES": "1"}

import jax
import pytest
from hypothesis import HealthCheck, settings
from jax import monitoring

from goalward.cli import main

# Silent broadcasting is an error in everything the tests run.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)

# The same examples every time, and no clock, since the first one compiles. Fixtures that set modes of jax may stay on.
settings.register_profile(
    "exact",
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("exact")


@pytest.fixture
def strict_dtypes():
    """Silent dtype changes are errors too; optax's Adam cannot run under this, so it is not for whole training runs."""
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture
def goalward(capsys):
    """Returns a function that runs a command and returns (exit code, output, errors)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_info:
            main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return exit_info.value.code, shown.out, shown.err

    return run


@pytest.fixture
def stages_of_programs():
    """What JAX does for the programs of runs, as (stage, name of the program), such as (backend_compile, advance)."""
    seen = []

    def note(event, seconds, fun_name="", **details):
        name = re.search("_(init|advance|evaluate)", fun_name)
        if name:
            seen.append((event.rpartition("/")[2].removesuffix("_duration"), name[1]))

    monitoring.register_event_duration_secs_listener(note)
    yield seen
    monitoring.unregister_event_duration_listener(note)


@pytest.fixture(scope="module")
def suite_arithmetic():
    """Allows the implicit broadcasting that the suites' own code relies on."""
    with jax.numpy_rank_promotion("allow"):
        yield
