"""Four rooms: one agent walks from a random cell to another. Discrete, single agent; the default task."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from goalward.envs.base import Discrete, Survey, SurveyNames, TimeStep
from goalward.envs.composed import GoalFactory, RewardFactory, require_whole
from goalward.envs.draw import WALL, Canvas, Image, draw_agents
from goalward.envs.maps import all_cells, all_shortest_paths
from goalward.envs.toy.base import TargetTask, distinct_cells
from goalward.errors import UserError
from goalward.goals.toy import Position
from goalward.rewards.toy import Dense

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right as (row, column)
_LARGEST_SIZE = 51  # the table of all shortest paths grows with the fourth power


class RoomsState(NamedTuple):
    """Cells are (row, column)."""

    position: jax.Array  # [1, 2] int32
    target: jax.Array  # [1, 2] int32
    arrived: jax.Array  # [1] bool


class Rooms(TargetTask):
    """A square of `size` x `size` cells, cut into four rooms by two walls with a door in each half.

    Observation: row and column, one-hot each. Actions: up, down, left, right; moves into walls are masked.
    """

    survey_names = SurveyNames(facings=("",), actions=("up", "down", "left", "right"))

    def __init__(
        self,
        *,
        size: int = 9,
        max_steps: int = 40,
        goal: GoalFactory = Position,
        reward: RewardFactory = Dense,
    ) -> None:
        require_whole("toy/rooms", 5, _LARGEST_SIZE, size=size)
        if size % 2 == 0:
            raise UserError(f"size of toy/rooms must be odd, so that the walls meet in a cell; found {size}.")
        self.size = size
        self.extent = float(size - 1)
        self.walls = four_rooms(size)
        self.paths = all_shortest_paths(self.walls)
        self.longest_path = float(self.paths[np.isfinite(self.paths)].max())
        self._free_cells = jnp.asarray(np.argwhere(~self.walls), jnp.int32)
        self._open_moves = jnp.asarray(open_moves(self.walls))
        super().__init__(
            name="toy/rooms",
            obs_dim=2 * size,
            action_space=Discrete(len(MOVES)),
            max_steps=max_steps,
            num_agents=1,
            goal=goal,
            reward=reward,
        )

    def reset(self, key: jax.Array) -> tuple[RoomsState, TimeStep]:
        """Returns an episode from one random cell to another."""
        start, target = jnp.split(distinct_cells(key, self._free_cells, 2), 2)
        state = RoomsState(start, target, jnp.zeros(1, bool))
        return state, self._view(state, jnp.zeros(1))

    def step(self, key: jax.Array, state: RoomsState, action: jax.Array) -> tuple[RoomsState, TimeStep]:
        """Returns the state one move later; a move into a wall changes nothing."""
        del key
        free = self._open_moves[state.position[:, 0], state.position[:, 1], action]
        position = state.position + jnp.asarray(MOVES, jnp.int32)[action] * free[:, None].astype(jnp.int32)
        moved = state._replace(position=position, arrived=jnp.all(position == state.target, axis=-1))
        return moved, self._view(moved, self.reward(state, action, moved))

    def path_length(self, state: RoomsState) -> jax.Array:
        """Returns [1], moves on the shortest way to the target."""
        row, col = state.position.T
        target_row, target_col = state.target.T
        return jnp.asarray(self.paths)[row, col, target_row, target_col]

    def render(self, state: RoomsState) -> Image:
        """Returns a picture of the rooms, the agent and its target."""
        canvas = Canvas(self.size)
        canvas.grid(self.size)
        for row, col in np.argwhere(self.walls):
            canvas.cell(col, row, WALL)
        draw_agents(canvas, state.position, state.target, radius=0.28, target_radius=0.36, offset=0.5)
        return canvas.image()

    def survey(self, key: jax.Array) -> Survey:
        """Returns one start with the agent on every cell; see `Survey`."""
        state, _ = self.reset(key)

        def seen_from(position: jax.Array) -> TimeStep:
            return self._view(state._replace(position=position[None]), jnp.zeros(1))

        step = jax.vmap(jax.vmap(jax.vmap(seen_from)))(jnp.asarray(all_cells(self.size, self.size))[None])
        return Survey(step, ~jnp.asarray(self.walls), state.target[0])

    def _view(self, state: RoomsState, reward: jax.Array) -> TimeStep:
        row, col = state.position.T
        obs = jnp.concatenate([jax.nn.one_hot(row, self.size), jax.nn.one_hot(col, self.size)], axis=-1)
        return self.view(state, obs=obs, reward=reward, action_mask=self._open_moves[row, col])


def four_rooms(size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns [size, size] bool, two crossing walls with a door in the middle of each arm."""
    middle = size // 2
    walls = np.zeros((size, size), bool)
    walls[middle, :] = walls[:, middle] = True
    near, far = (middle - 1) // 2, size - 1 - (middle - 1) // 2
    for door in (near, far):
        walls[middle, door] = walls[door, middle] = False
    return walls


def open_moves(walls: np.ndarray[Any, np.dtype[np.bool_]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns [H, W, 4] bool, whether each move from each cell stays on the map and off the walls."""
    padded = np.pad(walls, 1, constant_values=True)
    height, width = walls.shape
    return np.stack([~padded[1 + dr : 1 + dr + height, 1 + dc : 1 + dc + width] for dr, dc in MOVES], axis=-1)
