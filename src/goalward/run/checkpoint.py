"""Saving and restoring everything that training carries, bit for bit, with Orbax.

A checkpoint holds `state` (arrays) and `progress` (a JSON object). Orbax writes to a temporary directory and renames
it, so a checkpoint is there whole or not at all; it stores arrays and text only, so reading one executes no code. The
digests of its files are listed beside them, so that a copy that was cut short or changed is found before it is read.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from goalward.errors import GoalwardError, UserError, brief
from goalward.run.directory import write_json
from goalward.run.processes import arrays_from_first, count, from_first, is_first, to_host
from goalward.run.program import KEY_IMPL

FORMAT = 3  # raised when the layout of a checkpoint changes
_DIGESTS = "digests.json"  # file -> SHA-256, for every file of a checkpoint


class Checkpoints:
    """The checkpoints of one run, numbered by iteration; of several processes the first reads and writes them."""

    def __init__(self, path: Path, keep: int | None = None) -> None:
        self._path = path
        self._keep = keep
        self._manager: Any = None  # Orbax's, in the first process
        from_first(self._open)

    def _open(self) -> None:
        alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0} if count() > 1 else None)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=self._keep, enable_async_checkpointing=False, create=False, multiprocessing_options=alone
        )
        path = self._path
        if path.exists() and not path.is_dir():
            raise UserError(f"Expected '{path}' to be a directory of checkpoints; found a file. Move it away.")
        try:
            if self._keep is not None:
                path.mkdir(parents=True, exist_ok=True)
            self._manager = ocp.CheckpointManager(path.resolve(), options=options)
        except OSError as error:
            raise UserError(f"Expected '{path}' to be readable and writable; {error.strerror or error}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def latest(self) -> int | None:
        """Returns the iteration of the newest checkpoint, None if there is none."""
        return from_first(self._latest)

    def _latest(self) -> int | None:
        newest: int | None = self._manager.latest_step()
        return newest

    def save(self, iteration: int, state: Any, progress: dict[str, Any]) -> None:
        """Writes a checkpoint; one that exists already for this iteration stays."""
        if from_first(lambda: iteration in self._manager.all_steps()):
            return
        # So that a checkpoint does not depend on the devices that it was made on.
        arrays = on_host(state)
        from_first(lambda: self._write(iteration, arrays, {"format": FORMAT, "layout": _layout(state), **progress}))

    def _write(self, iteration: int, arrays: Any, progress: dict[str, Any]) -> None:
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(arrays), progress=ocp.args.JsonSave(progress))
        self._require_space(iteration, arrays)
        try:
            self._manager.save(iteration, args=arguments)
        except Exception as error:  # no narrower: what a full or failing disk raises depends on where it is noticed
            raise GoalwardError(
                f"The checkpoint of iteration {iteration} could not be written to '{self._path}'; {brief(error)}."
            ) from error
        where = self._path / str(iteration)
        write_json(where / _DIGESTS, {path: _digest(where / path) for path in _files(where)})

    def _require_space(self, iteration: int, arrays: Any) -> None:
        """Raises before Orbax runs into a full disk."""
        needed = sum(x.nbytes for x in jax.tree.leaves(arrays))
        free = shutil.disk_usage(self._path).free
        if needed > free:
            raise GoalwardError(
                f"The checkpoint of iteration {iteration} needs up to {needed / 1e6:,.0f} MB, and the disk of "
                f"'{self._path}' has {free / 1e6:,.0f} MB left. Make room and go on with --resume."
            )

    def restore(
        self, iteration: int, like: Any, place: Callable[[Any], Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Returns the state and the progress of a checkpoint.

        Args:
            iteration: which one.
            like: a state of the same structure, arrays or shapes.
            place: puts a tree of the host's arrays on devices; None takes the default device.

        """
        # Arrays of the host are asked for by example; a scalar spread over the shape takes no memory.
        arrays = jax.tree.map(
            lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), jax.eval_shape(_keys_to_data, like)
        )

        def read() -> dict[str, Any]:
            nonlocal arrays
            arrays, progress = self._read(iteration, arrays, _layout(like))
            return progress

        progress = from_first(read)
        restored = arrays_from_first(arrays)
        placed = jax.tree.map(jnp.asarray, restored) if place is None else place(restored)
        return jax.tree.map(_data_to_key, placed, like), progress

    def _read(self, iteration: int, target: Any, layout: dict[str, str]) -> tuple[Any, dict[str, Any]]:
        """Returns the arrays and the progress of a checkpoint."""
        where = self._path / str(iteration)
        damaged = f"The checkpoint {where} is damaged; delete it to use an older one."
        try:
            _check_digests(where)
            progress = self._manager.restore(iteration, args=ocp.args.Composite(progress=ocp.args.JsonRestore()))
            progress = dict(progress["progress"])
        except PermissionError as error:
            raise UserError(f"Expected the checkpoint {where} to be readable; {error.strerror}.") from error
        except (KeyError, OSError, ValueError, TypeError) as error:
            raise UserError(damaged) from error
        if progress.get("format") != FORMAT:
            raise UserError(
                f"Expected a checkpoint of format {FORMAT}; found format {progress.get('format')}. "
                "Use the version of goalward that wrote it, named in versions.json."
            )
        # Compared here and not by Orbax, whose failed reads go on in the background and complain when Python exits.
        if progress.get("layout") != layout:
            raise UserError(
                f"The checkpoint {where} does not fit the networks and the environment that it is to be used with; "
                "give the environment and the modules that the run was trained with."
            )
        try:
            restored = self._manager.restore(
                iteration, args=ocp.args.Composite(state=ocp.args.StandardRestore(target))
            )["state"]
        except Exception as error:  # no narrower: for arrays that it cannot read Orbax raises this very class
            raise UserError(damaged) from error
        return restored, progress

    def close(self) -> None:
        """Releases the threads that Orbax holds."""
        if is_first():
            self._manager.close()


def on_host(tree: Any) -> Any:
    """Returns arrays of the host, random keys as the numbers that they are, as a checkpoint holds them."""
    return to_host(_keys_to_data(tree))


def _files(where: Path) -> list[str]:
    """Returns the files of a checkpoint."""
    return sorted(str(path.relative_to(where)) for path in where.rglob("*") if path.is_file() and path.name != _DIGESTS)


def _digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _check_digests(where: Path) -> None:
    """Raises `ValueError` or `OSError` if a file is changed or missing, before Orbax finds out; see `restore`."""
    listed = where / _DIGESTS
    if not listed.exists():  # the process ended between the checkpoint and its list
        return
    for path, digest in dict(json.loads(listed.read_bytes())).items():
        if _digest(where / path) != digest:
            raise ValueError(path)


def _layout(tree: Any) -> dict[str, str]:
    """Returns the type and the shape of every array, by its place."""
    leaves = jax.tree.leaves_with_path(jax.eval_shape(_keys_to_data, tree))
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _keys_to_data(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)


def _data_to_key(data: Any, like: Any) -> Any:
    return jax.random.wrap_key_data(data, impl=KEY_IMPL) if _is_key(like) else data
