"""Strict arithmetic and one compilation cache for all tests."""

import os
from pathlib import Path

# Most of the tests' time is compilation, and code that runs once need not be optimised. Read when jax starts.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"

import jax
import pytest

# Silent broadcasting is an error in everything the tests run.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


@pytest.fixture
def strict_dtypes():
    """Silent dtype changes are errors too; optax's Adam cannot run under this, so it is not for whole training runs."""
    with jax.numpy_dtype_promotion("strict"):
        yield
