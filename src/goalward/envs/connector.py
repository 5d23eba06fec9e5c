"""Connector of jumanji: a team draws wires on a grid, each agent to its own target, and no two wires may cross."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jumanji.environments.routing.connector.constants import PATH, POSITION, TARGET
from jumanji.environments.routing.connector.env import Connector as Suite
from jumanji.environments.routing.connector.generator import (
    LegacyRandomWalkGenerator,
    RandomWalkGenerator,
    UniformRandomGenerator,
)
from jumanji.environments.routing.connector.types import Agent, State

from goalward.envs.base import Discrete, TimeStep
from goalward.envs.composed import ComposedEnv, GoalFactory, RewardFactory, require_whole
from goalward.envs.draw import AGENT_COLOURS, FLOOR, Canvas, Colour, Image
from goalward.errors import UserError, unknown_name
from goalward.goals.connector import Distance
from goalward.rewards.connector import Dense

GENERATORS = {
    "random_walk": RandomWalkGenerator,
    "legacy": LegacyRandomWalkGenerator,
    "uniform": UniformRandomGenerator,
}
_NUM_ACTIONS = 5  # stay, up, right, down, left
_OUTSIDE = -1  # the code of cells off the grid; modulo 3 it is that of a head, as which they are to appear


class ConnectorState(NamedTuple):
    """Cells are (row, column); S is the size of the grid."""

    grid: jax.Array  # [S, S] int32, 0 or the code of what agent i has there: wire 1 + 3i, head 2 + 3i, target 3 + 3i
    position: jax.Array  # [N, 2] int32, the heads
    target: jax.Array  # [N, 2] int32
    allowed: jax.Array  # [N, 5] bool, the moves that are possible now

    @property
    def distance(self) -> jax.Array:
        """[N] int32, moves to the target on an empty grid."""
        return jnp.abs(self.position - self.target).sum(-1)

    @property
    def connected(self) -> jax.Array:
        """[N] bool, whether an agent has reached its target, where it stays."""
        return jnp.all(self.position == self.target, axis=-1)


class Connector(ComposedEnv):
    """`num_agents` agents on a square grid; a head leaves a wire behind it that nobody can pass.

    Observation: own (row, column) and the target's, each over S^2; a window of the cells around, 1 for heads, -1 for
    wires; the same window, 1 for the own target, -1 for the others'. Cells off the grid are 1 in both. It is the view
    of Mava's vector wrapper, save that a connected agent still sees where its target is. Actions: stay, up, right,
    down, left; blocked moves are masked. If two want one cell, the one with the higher number gets it.

    The episode ends when nobody can move any more, since all are connected or blocked; it is won if all are connected.
    A blocked agent counts as active: it will never arrive, which is what its steps teach, and as staying is all that
    its mask allows, its part of the policy loss is nil.
    """

    def __init__(
        self,
        *,
        grid_size: int = 10,
        num_agents: int = 10,
        max_steps: int | None = None,
        generator: str = "random_walk",
        field_of_view: int = 2,
        goal: GoalFactory = Distance,
        reward: RewardFactory = Dense,
    ) -> None:
        require_whole("connector", 3, grid_size=grid_size)
        require_whole("connector", 1, num_agents=num_agents, field_of_view=field_of_view)
        if str(generator) not in GENERATORS:
            raise unknown_name("generator of connector", str(generator), GENERATORS)
        _require_room(generator, grid_size, num_agents)
        self.grid_size = grid_size
        self.longest_path = 2.0 * (grid_size - 1)
        self._reach = field_of_view
        name = f"connector/{grid_size}x{grid_size}x{num_agents}a"
        limit = grid_size**2 if max_steps is None else max_steps
        require_whole(name, 1, max_steps=limit)
        draw = GENERATORS[generator](grid_size, num_agents)
        self.suite = Suite(draw, time_limit=limit)
        # Outside of a compiled function, each of the suite's many small operations would be compiled for itself.
        self._draw = jax.jit(draw)
        self._move = jax.jit(self.suite.step)
        super().__init__(
            name=name,
            obs_dim=4 + 2 * (2 * field_of_view + 1) ** 2,
            action_space=Discrete(_NUM_ACTIONS),
            max_steps=limit,
            num_agents=num_agents,
            goal=goal,
            reward=reward,
        )

    def reset(self, key: jax.Array) -> tuple[ConnectorState, TimeStep]:
        """Returns an episode on a board of its own."""
        state = from_suite(self._draw(key))
        return state, self._view(state, jnp.zeros(self.spec.num_agents))

    def step(self, key: jax.Array, state: ConnectorState, action: jax.Array) -> tuple[ConnectorState, TimeStep]:
        """Returns the state after all have moved at once; a move that is not allowed is none."""
        del key
        agents = Agent(
            id=jnp.arange(self.spec.num_agents), start=state.position, target=state.target, position=state.position
        )
        # Where a wire began, how many steps were taken and the key have no bearing on a move: the state does without.
        full = State(grid=state.grid, step_count=jnp.int32(0), agents=agents, key=None, action_mask=state.allowed)
        moved = from_suite(self._move(full, action)[0])
        return moved, self._view(moved, self.reward(state, action, moved))

    def observe(self, state: ConnectorState) -> jax.Array:
        """Returns [N, D], what each agent sees."""
        width = 2 * self._reach + 1
        padded = jnp.pad(state.grid, self._reach, constant_values=_OUTSIDE)
        windows = jax.vmap(lambda corner: jax.lax.dynamic_slice(padded, corner, (width, width)))(state.position)
        code = windows.reshape(self.spec.num_agents, -1)  # the agent is in the middle
        kind = code % TARGET
        own_target = TARGET * jnp.arange(1, self.spec.num_agents + 1)[:, None]
        blockers = jnp.where(kind == POSITION, 1.0, jnp.where(kind == PATH, -1.0, 0.0))
        looks_own = (code == own_target) | (code == _OUTSIDE)
        targets = jnp.where(looks_own, 1.0, jnp.where((kind == 0) & (code > 0), -1.0, 0.0))
        places = jnp.concatenate([state.position, state.target], axis=-1).astype(jnp.float32) / self.grid_size**2
        return jnp.concatenate([places, blockers, targets], axis=-1)

    def render(self, state: ConnectorState) -> Image:
        """Returns a picture of the board: wires as tinted cells, heads as discs, targets as rings."""
        grid = np.asarray(state.grid)
        canvas = Canvas(self.grid_size)
        for row, col in np.argwhere((grid > 0) & (grid % TARGET != 0)):
            canvas.cell(col, row, _tinted(_colour((grid[row, col] - PATH) // TARGET)))
        canvas.grid(self.grid_size)
        for index, ((row, col), (target_row, target_col)) in enumerate(
            zip(np.asarray(state.position), np.asarray(state.target), strict=True)
        ):
            canvas.ring(target_col + 0.5, target_row + 0.5, 0.34, 0.14, _colour(index))
            canvas.disc(col + 0.5, row + 0.5, 0.24, _colour(index))
        return canvas.image()

    def _view(self, state: ConnectorState, reward: jax.Array) -> TimeStep:
        connected = state.connected
        stuck = ~jnp.any(state.allowed[:, 1:], axis=-1)
        return self.show(
            state,
            obs=self.observe(state),
            reward=reward,
            terminated=jnp.all(connected | stuck),
            success=jnp.all(connected),
            action_mask=state.allowed,
            active=~connected,
            metrics={"connected": jnp.mean(connected, dtype=jnp.float32)},
        )


def from_suite(full: State) -> ConnectorState:
    """Returns what we keep of a state of the suite."""
    return ConnectorState(full.grid, full.agents.position, full.agents.target, full.action_mask)


def _require_room(generator: str, grid_size: int, num_agents: int) -> None:
    """Raises unless every agent is sure of a place, whatever places the others were given before it."""
    # A walk begins with a pair of neighbouring cells. Such a pair touches at most 7 of the grid's 2 S (S - 1) edges,
    # and there is room for one more as long as an edge is untouched.
    walks = -(-2 * grid_size * (grid_size - 1) // 7)
    most = grid_size**2 // 2 if generator == "uniform" else walks
    if num_agents > most:
        raise UserError(
            f"num_agents of connector must be at most {most} on a grid of size {grid_size} with generator "
            f"'{generator}'; found {num_agents}. Choose a larger grid_size."
        )


def _colour(agent: int) -> Colour:
    return AGENT_COLOURS[agent % len(AGENT_COLOURS)]


def _tinted(colour: Colour) -> Colour:
    red, green, blue = ((2 * a + 3 * b) // 5 for a, b in zip(colour, FLOOR, strict=True))
    return red, green, blue
