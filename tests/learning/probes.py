"""Probe environments: each asks for one thing and is won every time by a policy that has learned it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from goalward.envs.base import Box, Discrete, EnvSpec, TimeStep


class ChoiceState(NamedTuple):
    target: jax.Array  # [N] int32
    cell: jax.Array  # [N] int32, NUM_CELLS before the step


class Choice:
    """One step: action a leads to cell a. Every agent has a cell of its own to reach."""

    NUM_CELLS = 8

    def __init__(self, num_agents=1):
        self.spec = EnvSpec(
            name="probe/choice",
            obs_dim=1,
            goal_dim=self.NUM_CELLS,
            action_space=Discrete(self.NUM_CELLS),
            max_steps=1,
            num_agents=num_agents,
        )

    @property
    def uniform_win_rate(self):
        return (1.0 / self.NUM_CELLS) ** self.spec.num_agents

    def reset(self, key):
        agents = self.spec.num_agents
        target = jax.random.randint(key, (agents,), 0, self.NUM_CELLS)
        state = ChoiceState(target, jnp.full(agents, self.NUM_CELLS))
        return state, self._view(state)

    def step(self, key, state, action):
        state = state._replace(cell=action)
        return state, self._view(state)

    def _view(self, state):
        started = state.cell[0] == self.NUM_CELLS
        return TimeStep(
            obs=jnp.ones((self.spec.num_agents, 1)),
            achieved=jax.nn.one_hot(state.cell, self.NUM_CELLS),
            goal=jax.nn.one_hot(state.target, self.NUM_CELLS),
            terminated=~started,
            success=jnp.all(state.cell == state.target),
        )


class Aim:
    """One step: a continuous action is the point that it hits; the target lies anywhere in the inner square."""

    RADIUS, INNER = 0.3, 0.7
    spec = EnvSpec(name="probe/aim", obs_dim=1, goal_dim=2, action_space=Box((-1.0, -1.0), (1.0, 1.0)), max_steps=1)
    # The disc around the target is a part of the square, whose area is 4.
    uniform_win_rate = np.pi * RADIUS**2 / 4.0

    def reset(self, key):
        target = jax.random.uniform(key, (1, 2), minval=-self.INNER, maxval=self.INNER)
        return target, self._view(target, jnp.zeros((1, 2)), jnp.array(False))

    def step(self, key, state, action):
        return state, self._view(state, action, jnp.array(True))

    def _view(self, target, point, over):
        near = jnp.sum(jnp.square(point - target)) < self.RADIUS**2
        return TimeStep(obs=jnp.ones((1, 1)), achieved=point, goal=target, terminated=over, success=over & near)


class CorridorState(NamedTuple):
    cell: jax.Array  # [] int32
    target: jax.Array  # [] int32


class Corridor:
    """Several steps: from any cell of a row to any other, left or right, with no step to waste on the longest way.

    A random walk arrives in time in 41 % of all episodes.
    """

    NUM_CELLS = 7
    spec = EnvSpec(
        name="probe/corridor",
        obs_dim=NUM_CELLS,
        goal_dim=NUM_CELLS,
        action_space=Discrete(2),
        max_steps=NUM_CELLS - 1,
    )

    def reset(self, key):
        cells = jax.random.permutation(key, self.NUM_CELLS)
        state = CorridorState(cells[0], cells[1])
        return state, self._view(state)

    def step(self, key, state, action):
        cell = jnp.clip(state.cell + 2 * action[0] - 1, 0, self.NUM_CELLS - 1)
        state = state._replace(cell=cell)
        return state, self._view(state)

    def _view(self, state):
        there = state.cell == state.target
        achieved = jax.nn.one_hot(state.cell, self.NUM_CELLS)[None]
        goal = jax.nn.one_hot(state.target, self.NUM_CELLS)[None]
        return TimeStep(obs=achieved, achieved=achieved, goal=goal, terminated=there, success=there)


class Paid:
    """Any probe, with a reward for winning."""

    def __init__(self, env):
        self.env = env
        self.spec = env.spec

    def reset(self, key):
        state, step = self.env.reset(key)
        return state, self._pay(step)

    def step(self, key, state, action):
        state, step = self.env.step(key, state, action)
        return state, self._pay(step)

    def _pay(self, step):
        return step._replace(reward=jnp.full(self.spec.num_agents, step.success.astype(jnp.float32)))
