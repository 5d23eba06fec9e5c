"""What training carries from one call to the next, with an axis of rows: the seeds of one run, or of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from goalward.run.program import Program


class TrainingState(struct.PyTreeNode):
    """All arrays that training carries."""

    learner: Any  # [R, ...]
    best: Any  # [R, ...], the parameters that did best in an evaluation so far
    best_win_rate: jax.Array  # [R], -1 before the first evaluation


@dataclass
class Progress:
    """How far training has come; saved beside every checkpoint."""

    iteration: int = 0
    elapsed: float = 0.0  # seconds, compilation included, earlier parts of a resumed run included
    history: list[dict[str, list[float]]] = field(default_factory=list)  # metrics [R] since the last evaluation

    def of(self, rows: slice) -> Progress:
        """Returns the progress of some rows."""
        history = [{name: values[rows] for name, values in metrics.items()} for metrics in self.history]
        return Progress(self.iteration, self.elapsed, history)


def first_state(program: Program) -> TrainingState:
    """Returns the state before the first iteration."""
    learner = program.init()
    # A copy, since the learner's own buffers are given away to each training call.
    best = jax.tree.map(jnp.copy, learner.params)
    none_yet = program.place(np.full(program.num_rows, -1.0, np.float32))
    return TrainingState(learner=learner, best=best, best_win_rate=none_yet)


def joined_states(states: Sequence[TrainingState]) -> TrainingState:
    """Returns the rows of several states as those of one, of the host where they are its arrays."""

    def joined(*parts: Any) -> Any:
        return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else jnp.concatenate(parts)

    together: TrainingState = jax.tree.map(joined, *states)
    return together


def joined_progress(parts: Sequence[Progress]) -> Progress:
    """Returns the progress of all rows, which have come equally far."""
    histories = zip(*(part.history for part in parts), strict=True)
    history = [{name: [value for part in same for value in part[name]] for name in same[0]} for same in histories]
    return Progress(parts[0].iteration, max(part.elapsed for part in parts), history)
