"""Checkpoints give back every bit."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import struct

import goalward as gw
from goalward.run.checkpoint import Checkpoints


class Inner(NamedTuple):
    weights: jax.Array
    count: jax.Array


class Outer(struct.PyTreeNode):
    inner: Inner
    key: jax.Array
    keys: jax.Array
    flags: jax.Array
    nested: dict


@pytest.fixture(scope="module")
def state():
    values = [0.0, -0.0, 1e-45, 3.4e38, np.inf, -np.inf, np.nan, 1 / 3]
    return Outer(
        inner=Inner(jnp.asarray(values, jnp.float32), jnp.array(2**31 - 1, jnp.int32)),
        key=jax.random.key(7),
        keys=jax.random.split(jax.random.key(8), (3, 2)),
        flags=jnp.array([True, False]),
        nested={"small": jnp.arange(4, dtype=jnp.uint32), "empty": (), "half": jnp.ones(3, jnp.bfloat16) / 3},
    )


def bits(tree):
    """Returns every leaf as its type, shape and bytes."""

    def one(x):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return str(x.dtype), x.shape, np.asarray(jax.random.key_data(x) if is_key else x).tobytes()

    return jax.tree.structure(tree), [one(leaf) for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, state):
    path = tmp_path_factory.mktemp("checkpoints")
    checkpoints = Checkpoints(path, keep=2)
    for iteration in (0, 5, 10):
        progress = {"elapsed": 1.25, "history": [{"loss": [0.1, 1 / 3]}]}
        checkpoints.save(iteration, state.replace(key=jax.random.key(iteration)), progress)
    checkpoints.close()
    return path


def test_every_bit_comes_back_random_keys_included(folder, state):
    checkpoints = Checkpoints(folder)
    restored, progress = checkpoints.restore(10, jax.eval_shape(lambda: state))
    checkpoints.close()

    assert bits(restored) == bits(state.replace(key=jax.random.key(10)))
    assert jax.random.uniform(restored.key) == jax.random.uniform(jax.random.key(10))
    assert progress["history"] == [{"loss": [0.1, 1 / 3]}]
    assert progress["elapsed"] == 1.25


def test_the_newest_are_kept(folder):
    checkpoints = Checkpoints(folder)
    assert checkpoints.latest() == 10
    checkpoints.close()
    assert sorted(path.name for path in folder.iterdir()) == ["10", "5"]


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.latest() is None
    checkpoints.close()


def test_a_checkpoint_that_exists_stays(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(3, {"x": jnp.zeros(2)}, {"elapsed": 1})
    checkpoints.save(3, {"x": jnp.ones(2)}, {"elapsed": 2})
    restored, progress = checkpoints.restore(3, {"x": jnp.zeros(2)})
    checkpoints.close()

    assert restored["x"].tolist() == [0, 0]
    assert progress["elapsed"] == 1


@pytest.mark.parametrize("change", ["a wider layer", "a missing part"])
def test_a_checkpoint_of_another_network_is_refused(folder, state, change):
    """Before Orbax reads it: what it leaves behind after a failed read would be an error of a later test."""
    other = {
        "a wider layer": state.replace(inner=state.inner._replace(weights=jnp.zeros(9))),
        "a missing part": state.replace(nested={"small": jnp.arange(4, dtype=jnp.uint32)}),
    }[change]
    checkpoints = Checkpoints(folder)
    with pytest.raises(gw.UserError, match="does not fit the networks and the environment"):
        checkpoints.restore(10, jax.eval_shape(lambda: other))
    checkpoints.close()


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(0, {"x": jnp.zeros(2)}, {"format": 99})
    with pytest.raises(gw.UserError, match=r"format 3; found format 99.*versions\.json"):
        checkpoints.restore(0, {"x": jnp.zeros(2)})
    checkpoints.close()


@pytest.fixture
def copy_of_folder(folder, tmp_path):
    """The checkpoints, to be changed at will."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.mark.parametrize("change", ["cut short", "missing", "one bit flipped"])
def test_arrays_that_are_incomplete_or_changed_are_found_before_orbax_reads_them(copy_of_folder, state, change):
    files = [path for path in (copy_of_folder / "10" / "state").rglob("*") if path.is_file()]
    arrays = max(files, key=lambda path: path.stat().st_size)
    content = arrays.read_bytes()
    arrays.unlink()
    if change == "cut short":
        arrays.write_bytes(content[: len(content) // 2])
    if change == "one bit flipped":
        middle = len(content) // 2
        arrays.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    with (
        Checkpoints(copy_of_folder) as checkpoints,
        pytest.raises(gw.UserError, match=r"10 is damaged; delete it to use an older one\.$"),
    ):
        checkpoints.restore(10, jax.eval_shape(lambda: state))


def test_arrays_that_orbax_cannot_read_are_explained(folder, state, monkeypatch):
    def read(handler, *arguments, **options):
        raise Exception("Encountered error while reading array index")

    monkeypatch.setattr(ocp.StandardCheckpointHandler, "restore", read)
    with Checkpoints(folder) as checkpoints, pytest.raises(gw.UserError, match="10 is damaged"):
        checkpoints.restore(10, jax.eval_shape(lambda: state))


def test_a_checkpoint_without_its_list_of_files_is_still_one(copy_of_folder, state):
    (copy_of_folder / "10" / "digests.json").unlink()
    with Checkpoints(copy_of_folder) as checkpoints:
        restored, _ = checkpoints.restore(10, jax.eval_shape(lambda: state))
    assert bits(restored.inner) == bits(state.inner)


def test_a_file_in_the_place_of_the_checkpoints_is_refused(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(gw.UserError, match="to be a directory of checkpoints; found a file"):
        Checkpoints(tmp_path / "checkpoints", keep=2)


def test_nothing_in_a_checkpoint_is_a_pickle(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]

    assert files
    assert not [path for path in files if path.suffix in (".pkl", ".pickle") or path.read_bytes()[:2] == b"\x80\x04"]


def test_a_checkpoint_that_the_disk_cannot_hold_is_not_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=7_000_000))
    with (
        Checkpoints(tmp_path, keep=1) as checkpoints,
        pytest.raises(gw.GoalwardError, match=r"iteration 3 needs up to 8 MB, and the disk of .* has 7 MB left"),
    ):
        checkpoints.save(3, {"x": jnp.zeros(2_000_000)}, {})
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_cannot_be_written_is_explained(tmp_path, monkeypatch):
    def write(manager, *arguments, **options):
        raise ValueError("OUT_OF_RANGE: Failed to write 2371919 bytes")

    monkeypatch.setattr(ocp.CheckpointManager, "save", write)
    with (
        Checkpoints(tmp_path, keep=1) as checkpoints,
        pytest.raises(gw.GoalwardError, match=r"iteration 3 could not be written to .*Failed to write 2371919 bytes"),
    ):
        checkpoints.save(3, {"x": jnp.zeros(2)}, {})
