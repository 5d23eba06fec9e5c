"""Strict arithmetic and one compilation cache for all tests."""

from pathlib import Path

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


@pytest.fixture(autouse=True)
def doctest_tmp_path(doctest_namespace, tmp_path):
    """Examples in docstrings write to `tmp_path`."""
    doctest_namespace["tmp_path"] = tmp_path
