"""Memory: what a run will take, and what to say when there is not enough."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from goalward.algos.base import Learner
from goalward.backend import default_device
from goalward.errors import UserError, brief, listed
from goalward.run.program import Program

_LIMIT_OF_CONTAINER = Path("/sys/fs/cgroup/memory.max")  # a number of bytes, or the word max
_WRITING = 2.0  # times the size of a checkpoint, to copy and compress it; measured with Orbax, 0.8 to 2.4 GB


def require_memory(program: Program, *, num_seeds: int, num_episodes: int) -> None:
    """Raises if what the seeds keep in training, or their episodes in an evaluation, is more than the device holds.

    Nothing is computed: a program that is far too large would not fail but take the process down. That the parts of
    a learner fit together shows here as well.
    """
    learner = program.learner
    replay = num_seeds * learner.replay_bytes
    _require(replay, "The replay", "remembered steps (replay_size), seeds or environments (num_envs)")
    _require(num_seeds * _bytes_kept(program), "Training", _for_training(learner))
    require_memory_for_episodes(program, num_seeds, num_episodes)


def require_memory_for_checkpoints(program: Program, *, num_on_host: int, num_written: int) -> None:
    """Raises if the machine cannot hold the states of so many seeds while it writes those of `num_written`."""
    needed = int((num_on_host + _WRITING * num_written) * _bytes_kept(program))
    _require(needed, "Training and its checkpoints", _for_training(program.learner), of_host=True)


def require_memory_of(compiled: Any, best: Any, learner: Learner, *, num_devices: int = 1) -> None:
    """Raises if a compiled training program takes more than the device holds: its rollouts are known only now.

    `best` are the parameters that are kept beside it; `num_devices` of them share the memory.
    """
    of_program = bytes_of_program(compiled)
    if of_program is not None:
        of_best = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(best))
        fewer = _for_training(learner, "shorter rollouts (rollout_length)", "smaller minibatches (batch_size)")
        _require(num_devices * (of_program + of_best), "Training", fewer)


def bytes_of_program(compiled: Any) -> int | None:
    """Returns the memory that a compiled program asks for on a device, its arguments and results included."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    kept = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return int(kept + analysis.temp_size_in_bytes)


def require_memory_for_film(recorded: Any, num_episodes: int) -> None:
    """Raises if recorded episodes, given the shapes of one, are more than the device holds."""
    _require(num_episodes * _num_bytes(recorded), "The film", "episodes (--episodes; in training render_episodes)")


def require_memory_for_episodes(program: Program, num_seeds: int, num_episodes: int) -> None:
    """Raises if the episodes of an evaluation alone are more than the device holds."""
    episodes = program.shapes().worlds.episodes  # [R, E, ...]
    one = _num_bytes(episodes) // (program.num_rows * program.learner.num_envs)
    fewer = "episodes (--episodes; in training eval_episodes, and absolute_factor times as many at the end) or seeds"
    _require(num_seeds * num_episodes * one, "An evaluation", fewer)


def _for_training(learner: Learner, *more: str) -> str:
    """Returns what there may be fewer of, or what else might be smaller."""
    replay = ["a shorter replay (replay_size)"] if learner.replay_bytes else []
    return listed(["seeds", "environments (num_envs)", *replay, *more, "smaller networks (hidden_sizes)"], "or")


def _bytes_kept(program: Program) -> int:
    """Returns what a seed keeps from one iteration to the next: its state, and the best parameters so far."""
    state = program.shapes()
    return _num_bytes((state, state.params)) // program.num_rows


def _require(needed: int, what: str, fewer: str, *, of_host: bool = False) -> None:
    available, where = (host_memory(), "machine") if of_host else (device_memory(), "device")
    if needed > available:
        sizes = f"{needed / 1e9:,.1f} GB, and the {where} has {available / 1e9:,.1f} GB"
        raise UserError(f"{what} would keep {sizes}; use fewer {fewer}.")


def device_memory() -> int:
    """Returns the bytes of the accelerator, or of the machine or container where there is none."""
    stats = default_device().memory_stats() or {}
    return int(stats["bytes_limit"]) if "bytes_limit" in stats else host_memory()


def host_memory() -> int:
    """Returns the bytes of the machine or container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(_LIMIT_OF_CONTAINER.read_text()))
    except (OSError, ValueError):
        return machine


def says_out_of_memory(error: Exception) -> bool:
    """Returns whether JAX or a library beneath it says so."""
    return any(words in str(error).lower() for words in ("resource_exhausted", "out of memory"))


@contextmanager
def memory_explained() -> Iterator[None]:
    """Turns what JAX says when a device runs out of memory into a sentence."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not says_out_of_memory(error):
            raise
        raise UserError(
            "The device has too little memory for this; use fewer seeds, environments (num_envs) or evaluation "
            "episodes (eval_episodes, --episodes), smaller minibatches (batch_size) or networks, or a shorter replay "
            "if there is one (replay_size). "
            f"{brief(error)}."
        ) from error


def _num_bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
