"""Routing: a team on one board, each agent to its own cell, no two on one. Discrete, several agents."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from goalward.envs.base import Discrete, TimeStep
from goalward.envs.composed import GoalFactory, RewardFactory, require_whole
from goalward.envs.draw import Canvas, Image, draw_agents
from goalward.envs.toy.base import TargetTask, distinct_cells
from goalward.errors import UserError
from goalward.goals.toy import Position
from goalward.rewards.toy import Dense

MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))  # stay, up, down, left, right as (row, column)
_WINDOW = 5  # cells on a side of the neighbourhood that an agent sees


class RoutingState(NamedTuple):
    """Cells are (row, column)."""

    position: jax.Array  # [N, 2] int32
    target: jax.Array  # [N, 2] int32
    arrived: jax.Array  # [N] bool


class Routing(TargetTask):
    """`num_agents` agents on an open board; an agent that arrives stays there for good and blocks the cell.

    Observation: own row and column, one-hot each; the way to the target, (rows, columns) over the size; a 5 x 5
    neighbourhood, 1 where a cell is taken or off the board. Actions: stay, up, down, left, right; moves that are
    blocked now are masked. Agents move in the order of their numbers, and a cell taken in the meantime blocks too.
    """

    def __init__(
        self,
        *,
        size: int = 6,
        num_agents: int = 4,
        max_steps: int = 24,
        goal: GoalFactory = Position,
        reward: RewardFactory = Dense,
    ) -> None:
        require_whole("toy/routing", 3, size=size)
        require_whole("toy/routing", 2, num_agents=num_agents)
        if num_agents > size * size // 4:
            raise UserError(
                f"num_agents of toy/routing must be at most size^2/4, {size * size // 4}; found {num_agents}."
            )
        self.size = size
        self.extent = float(size - 1)
        self.longest_path = 2.0 * (size - 1)
        self._cells = jnp.asarray(np.argwhere(np.ones((size, size), bool)), jnp.int32)
        super().__init__(
            name="toy/routing",
            obs_dim=2 * size + 2 + _WINDOW**2,
            action_space=Discrete(len(MOVES)),
            max_steps=max_steps,
            num_agents=num_agents,
            goal=goal,
            reward=reward,
        )

    def reset(self, key: jax.Array) -> tuple[RoutingState, TimeStep]:
        """Returns an episode with starts and targets on different cells."""
        agents = self.spec.num_agents
        cells = distinct_cells(key, self._cells, 2 * agents)
        state = RoutingState(cells[:agents], cells[agents:], jnp.zeros(agents, bool))
        return state, self._view(state, jnp.zeros(agents))

    def step(self, key: jax.Array, state: RoutingState, action: jax.Array) -> tuple[RoutingState, TimeStep]:
        """Returns the state after every agent has moved, one after the other."""
        del key
        wanted = state.position + jnp.asarray(MOVES, jnp.int32)[action]
        position = state.position
        for agent in range(self.spec.num_agents):
            cell = wanted[agent]
            on_board = jnp.all((cell >= 0) & (cell < self.size))
            taken = jnp.any(jnp.all(position == cell[None], axis=-1))
            free = on_board & ~taken & ~state.arrived[agent]
            position = position.at[agent].set(jnp.where(free, cell, position[agent]))
        moved = state._replace(position=position, arrived=state.arrived | jnp.all(position == state.target, axis=-1))
        return moved, self._view(moved, self.reward(state, action, moved))

    def path_length(self, state: RoutingState) -> jax.Array:
        """Returns [N], moves to the target on an empty board."""
        return jnp.abs(state.position - state.target).sum(-1).astype(jnp.float32)

    def render(self, state: RoutingState) -> Image:
        """Returns a picture of the board, the agents and their targets."""
        canvas = Canvas(self.size)
        canvas.grid(self.size)
        draw_agents(canvas, state.position, state.target, radius=0.26, target_radius=0.38, offset=0.5)
        return canvas.image()

    def _view(self, state: RoutingState, reward: jax.Array) -> TimeStep:
        reach = _WINDOW // 2
        board = jnp.pad(jnp.zeros((self.size, self.size)), reach, constant_values=1.0)
        board = board.at[state.position[:, 0] + reach, state.position[:, 1] + reach].set(1.0)
        around = jnp.arange(_WINDOW)
        rows = state.position[:, 0, None, None] + around[None, :, None]
        cols = state.position[:, 1, None, None] + around[None, None, :]
        window = board[rows, cols]  # [N, 5, 5], the agent in the middle
        obs = jnp.concatenate(
            [
                jax.nn.one_hot(state.position[:, 0], self.size),
                jax.nn.one_hot(state.position[:, 1], self.size),
                (state.target - state.position).astype(jnp.float32) / self.size,
                window.reshape(self.spec.num_agents, -1),
            ],
            axis=-1,
        )
        blocked = jnp.stack([window[:, reach + dr, reach + dc] for dr, dc in MOVES[1:]], axis=-1) > 0
        stay = jnp.ones((self.spec.num_agents, 1), bool)
        mask = jnp.concatenate([stay, ~blocked & ~state.arrived[:, None]], axis=-1)
        return self.view(state, obs=obs, reward=reward, action_mask=mask)
