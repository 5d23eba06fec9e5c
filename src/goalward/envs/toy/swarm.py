"""Swarm: points that push each other aside, each on the way to its own place. Continuous, several agents."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from goalward.envs.base import Box, TimeStep
from goalward.envs.composed import GoalFactory, RewardFactory, require_whole
from goalward.envs.draw import Canvas, Image, draw_agents
from goalward.envs.toy.base import TargetTask
from goalward.goals.toy import Position
from goalward.rewards.toy import Dense

_EXTENT = 4.0
_SPEED = 0.25  # length units per step at full speed
_MOMENTUM = 0.5  # share of the velocity that survives a step
_REACH = 0.35  # closer to the target than this is there
_BODY = 0.5  # two agents closer than this push each other apart
_MOST_AGENTS = 1000  # everybody sees everybody, so memory grows with the square


class SwarmState(NamedTuple):
    """Coordinates are (y, x)."""

    position: jax.Array  # [N, 2] float32
    target: jax.Array  # [N, 2] float32
    arrived: jax.Array  # [N] bool
    velocity: jax.Array  # [N, 2] float32


class Swarm(TargetTask):
    """`num_agents` points in a square; one that arrives is parked there, takes no more room and moves no more.

    Observation: own position in [-1, 1], own velocity over the full speed, the way to the own target, and for every
    other agent the way to it and whether it has arrived. Action: push in (y, x), each in [-1, 1].
    """

    def __init__(
        self,
        *,
        num_agents: int = 3,
        max_steps: int = 40,
        goal: GoalFactory = Position,
        reward: RewardFactory = Dense,
    ) -> None:
        require_whole("toy/swarm", 2, _MOST_AGENTS, num_agents=num_agents)
        self.extent = _EXTENT
        self.longest_path = 2.0**0.5 * _EXTENT
        super().__init__(
            name="toy/swarm",
            obs_dim=6 + 3 * (num_agents - 1),
            action_space=Box((-1.0, -1.0), (1.0, 1.0)),
            max_steps=max_steps,
            num_agents=num_agents,
            goal=goal,
            reward=reward,
        )

    def reset(self, key: jax.Array) -> tuple[SwarmState, TimeStep]:
        """Returns an episode with starts and targets drawn uniformly; nobody has arrived yet."""
        agents = self.spec.num_agents
        points = jax.random.uniform(key, (2, agents, 2), minval=0.0, maxval=_EXTENT)
        state = SwarmState(points[0], points[1], jnp.zeros(agents, bool), jnp.zeros((agents, 2)))
        return state, self._view(state, jnp.zeros(agents))

    def step(self, key: jax.Array, state: SwarmState, action: jax.Array) -> tuple[SwarmState, TimeStep]:
        """Returns the state one push later."""
        del key
        moving = (~state.arrived)[:, None].astype(jnp.float32)
        push = jnp.clip(action, -1.0, 1.0) * _SPEED
        velocity = (_MOMENTUM * state.velocity + (1.0 - _MOMENTUM) * push) * moving
        wanted = state.position + velocity + self._repulsion(state) * moving
        position = jnp.clip(wanted, 0.0, _EXTENT)
        near = jnp.linalg.norm(position - state.target, axis=-1) < _REACH
        moved = SwarmState(position, state.target, state.arrived | near, velocity)
        return moved, self._view(moved, self.reward(state, action, moved))

    def path_length(self, state: SwarmState) -> jax.Array:
        """Returns [N], straight distances to the targets; 0 once arrived."""
        return jnp.where(state.arrived, 0.0, jnp.linalg.norm(state.position - state.target, axis=-1))

    def render(self, state: SwarmState) -> Image:
        """Returns a picture of the points and their targets."""
        canvas = Canvas(_EXTENT)
        draw_agents(canvas, state.position, state.target, radius=_BODY / 2, target_radius=_REACH)
        return canvas.image()

    def _repulsion(self, state: SwarmState) -> jax.Array:
        apart = state.position[:, None] - state.position[None, :]  # [N, N, 2], from the second to the first
        distance = jnp.sqrt(jnp.sum(jnp.square(apart), -1, keepdims=True) + 1e-6)
        both_there = ~(state.arrived[:, None] | state.arrived[None, :]) & ~jnp.eye(len(apart), dtype=bool)
        overlap = jnp.maximum(_BODY - distance, 0.0) * both_there[..., None].astype(jnp.float32)
        return 0.5 * jnp.sum(apart / distance * overlap, axis=1)

    def _view(self, state: SwarmState, reward: jax.Array) -> TimeStep:
        agents = self.spec.num_agents
        column, row = jnp.arange(agents - 1)[None, :], jnp.arange(agents)[:, None]
        others = jnp.where(column < row, column, column + 1)  # [N, N-1], everybody but oneself
        gaps = (state.position[others] - state.position[:, None]) / _EXTENT  # [N, N-1, 2]
        parked = state.arrived[others][..., None].astype(jnp.float32)
        obs = jnp.concatenate(
            [
                2.0 * state.position / _EXTENT - 1.0,
                state.velocity / _SPEED,
                (state.target - state.position) / _EXTENT,
                jnp.concatenate([gaps, parked], axis=-1).reshape(agents, -1),
            ],
            axis=-1,
        )
        return self.view(state, obs=obs, reward=reward)
