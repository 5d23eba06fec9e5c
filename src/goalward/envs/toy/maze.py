"""Maze: a point with momentum steers around walls. Continuous, single agent."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from goalward.envs.base import Box, TimeStep
from goalward.envs.composed import GoalFactory, RewardFactory
from goalward.envs.draw import WALL, Canvas, Image, draw_agents
from goalward.envs.maps import all_shortest_paths, parse_map
from goalward.envs.toy.base import TargetTask, distinct_cells
from goalward.goals.toy import Position
from goalward.rewards.toy import Dense

# fmt: off
MAP = (
    ".......",
    ".......",
    "#####..",
    ".......",
    "..#####",
    ".......",
    ".......",
)
# fmt: on
_SPEED = 0.4  # cells per step at full speed; below 1, so that no wall can be jumped
_MOMENTUM = 0.5  # share of the velocity that survives a step
_REACH = 0.5  # cells; closer to the target than this is there


class MazeState(NamedTuple):
    """Coordinates are (y, x) in cells."""

    position: jax.Array  # [1, 2] float32
    target: jax.Array  # [1, 2] float32
    arrived: jax.Array  # [1] bool
    velocity: jax.Array  # [1, 2] float32


class Maze(TargetTask):
    """A 7 x 7 square with two walls that leave an S-shaped way; starts and targets lie anywhere off the walls.

    Observation: position scaled to [-1, 1], velocity over the full speed. Action: push in (y, x), each in [-1, 1].
    """

    def __init__(self, *, max_steps: int = 60, goal: GoalFactory = Position, reward: RewardFactory = Dense) -> None:
        self.walls = parse_map(MAP)
        self.extent = float(len(MAP))
        self.paths = all_shortest_paths(self.walls)
        self.longest_path = float(self.paths[np.isfinite(self.paths)].max())
        self._free_cells = jnp.asarray(np.argwhere(~self.walls), jnp.int32)
        # One ring of walls around the map, so that its edge needs no case of its own.
        self._solid = jnp.pad(jnp.asarray(self.walls), 1, constant_values=True)
        super().__init__(
            name="toy/maze",
            obs_dim=4,
            action_space=Box((-1.0, -1.0), (1.0, 1.0)),
            max_steps=max_steps,
            num_agents=1,
            goal=goal,
            reward=reward,
        )

    def reset(self, key: jax.Array) -> tuple[MazeState, TimeStep]:
        """Returns an episode between two random points in different cells, out of reach of each other."""
        key_cells, key_points = jax.random.split(key)
        cells = distinct_cells(key_cells, self._free_cells, 2)
        # Points keep to the middle half of their cells: neighbours are then at least half a cell apart.
        points = cells.astype(jnp.float32) + jax.random.uniform(key_points, (2, 2), minval=0.25, maxval=0.75)
        start, target = jnp.split(points, 2)
        state = MazeState(start, target, jnp.zeros(1, bool), jnp.zeros((1, 2)))
        return state, self._view(state, jnp.zeros(1))

    def step(self, key: jax.Array, state: MazeState, action: jax.Array) -> tuple[MazeState, TimeStep]:
        """Returns the state one push later; walls stop the motion towards them and not along them."""
        del key
        push = jnp.clip(action, -1.0, 1.0) * _SPEED
        y, x = state.position[0]
        vy, vx = (_MOMENTUM * state.velocity + (1.0 - _MOMENTUM) * push)[0]
        vy = jnp.where(self._is_solid(y + vy, x), 0.0, vy)
        vx = jnp.where(self._is_solid(y + vy, x + vx), 0.0, vx)
        velocity = jnp.stack([vy, vx])[None]
        position = state.position + velocity
        near = jnp.linalg.norm(position - state.target, axis=-1) < _REACH
        moved = MazeState(position, state.target, near, velocity)
        return moved, self._view(moved, self.reward(state, action, moved))

    def path_length(self, state: MazeState) -> jax.Array:
        """Returns [1], cells on the shortest way from the agent's cell to the target's; 0 once arrived."""
        row, col = jnp.floor(state.position).astype(jnp.int32).T
        target_row, target_col = jnp.floor(state.target).astype(jnp.int32).T
        way = jnp.asarray(self.paths)[row, col, target_row, target_col]
        straight = jnp.linalg.norm(state.position - state.target, axis=-1)
        return jnp.where(state.arrived, 0.0, jnp.maximum(way, straight))

    def render(self, state: MazeState) -> Image:
        """Returns a picture of the walls, the point and its target."""
        canvas = Canvas(self.extent)
        for row, col in np.argwhere(self.walls):
            canvas.cell(col, row, WALL)
        draw_agents(canvas, state.position, state.target, radius=0.18, target_radius=0.4)
        return canvas.image()

    def _is_solid(self, y: jax.Array, x: jax.Array) -> jax.Array:
        return self._solid[jnp.floor(y).astype(jnp.int32) + 1, jnp.floor(x).astype(jnp.int32) + 1]

    def _view(self, state: MazeState, reward: jax.Array) -> TimeStep:
        obs = jnp.concatenate([2.0 * state.position / self.extent - 1.0, state.velocity / _SPEED], axis=-1)
        return self.view(state, obs=obs, reward=reward)
