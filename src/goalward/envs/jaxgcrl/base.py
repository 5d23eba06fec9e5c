"""What the three tasks share: a robot whose hand or torso should be at a target when time is up."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from goalward.envs.base import Box, TimeStep
from goalward.envs.composed import ComposedEnv, GoalFactory, RewardFactory
from goalward.envs.draw import AGENT_COLOURS, GRID_LINE, Canvas, Colour
from goalward.envs.jaxgcrl.physics import RobotPhysics

ROBOT, TARGET = AGENT_COLOURS[:2]
REACHED: Colour = (250, 216, 184)


class RobotState(NamedTuple):
    """One robot (N = 1); lengths in metres."""

    physics: Any  # what the physics needs between two steps, with the coordinates `q` and velocities `qd`
    position: jax.Array  # [1, G] float32, of the part that should get to the target
    target: jax.Array  # [1, G] float32
    num_steps: jax.Array  # [] int32, steps taken
    num_at_goal: jax.Array  # [] int32, those of them that ended within reach of the target


class RobotTask(ComposedEnv):
    """A robot with goals that are drawn anew in every episode; nothing but a fall ends one early."""

    pays_progress: bool  # whether the dense reward pays for speed towards the target, or for being near it

    def __init__(
        self, physics: RobotPhysics, *, name: str, max_steps: int, goal: GoalFactory, reward: RewardFactory
    ) -> None:
        self.physics = physics
        self.reach = physics.reach
        self.target_dim = physics.target_dim
        self.dt = round(float(physics.dt), 6)  # seconds per step
        torques = physics.action_size
        super().__init__(
            name=name,
            obs_dim=physics.obs_dim,
            action_space=Box((-1.0,) * torques, (1.0,) * torques),
            max_steps=max_steps,
            goal=goal,
            reward=reward,
        )

    def reset(self, key: jax.Array) -> tuple[RobotState, TimeStep]:
        """Returns an episode with a start and a target of its own."""
        full = self.physics.first(key)
        none = jnp.zeros((), jnp.int32)
        position, target = self.physics.position(full)[None], self.physics.target(full)[None]
        state = RobotState(self.physics.shrink(full), position, target, none, none)
        return state, self._view(full, state, jnp.zeros(1))

    def step(self, key: jax.Array, state: RobotState, action: jax.Array) -> tuple[RobotState, TimeStep]:
        """Returns the state after the torques `action` [1, A] were applied for `dt` seconds."""
        del key
        full = self.physics.pipeline_step(self.physics.restore(state.physics), action[0])
        moved = state._replace(
            physics=self.physics.shrink(full),
            position=self.physics.position(full)[None],
            num_steps=state.num_steps + 1,
        )
        # Physics that came apart ends the episode as a fall; what it leaves behind must not reach the networks.
        is_sound = jnp.all(jnp.isfinite(full.q)) & jnp.all(jnp.isfinite(full.qd))
        moved = jax.tree.map(lambda new, old: jnp.where(is_sound, new, old), moved, state)
        moved = moved._replace(num_at_goal=state.num_at_goal + self.is_at_goal(moved)[0])
        return moved, self._view(full, moved, self.reward(state, action, moved))

    def distance(self, state: RobotState) -> jax.Array:
        """Returns [1], metres to the target."""
        return jnp.linalg.norm(state.position - state.target, axis=-1)

    def is_at_goal(self, state: RobotState) -> jax.Array:
        """Returns [1] bool, whether the target is within reach."""
        return self.distance(state) < self.reach

    def _view(self, full: Any, state: RobotState, reward: jax.Array) -> TimeStep:
        fallen = self.physics.has_fallen(full)
        obs = self.physics.observe(full)
        return self.show(
            state,
            obs=jnp.where(jnp.isfinite(obs), obs, 0.0)[None],
            reward=reward,
            terminated=fallen,
            success=self.is_at_goal(state)[0] & ~fallen,
            metrics={
                "success_any": state.num_at_goal > 0,
                "time_at_goal": state.num_at_goal / jnp.maximum(state.num_steps, 1).astype(jnp.float32),
            },
        )


class TopView:
    """A canvas in metres whose x axis points down and whose y axis points right, as maze layouts are written."""

    def __init__(self, low: float, high: float) -> None:
        self.canvas = Canvas(high - low)
        self._low = low
        self._line = (high - low) / 192

    def at(self, point: Any) -> tuple[float, float]:
        """Returns where a point (x, y, ...) lies on the canvas."""
        return float(point[1]) - self._low, float(point[0]) - self._low

    def circle(self, radius: float) -> None:
        """Draws a thin circle around the origin."""
        self.canvas.ring(*self.at((0.0, 0.0)), radius, self._line, GRID_LINE)

    def disc(self, point: Any, radius: float, colour: Colour = ROBOT) -> None:
        """Draws a joint or another round part."""
        self.canvas.disc(*self.at(point), radius, colour)

    def limb(self, points: Any, width: float) -> None:
        """Draws a limb of the robot through `points` [P, 2 or 3]."""
        for start, end in pairwise(points):
            self.canvas.line(self.at(start), self.at(end), width, ROBOT)

    def goal(self, state: RobotState, reach: float) -> None:
        """Draws the target and what is within reach of it; filled once the robot is there."""
        position, target = np.asarray(state.position)[0], np.asarray(state.target)[0]
        if np.linalg.norm(position - target) < reach:
            self.disc(target, reach, REACHED)
        self.disc(target, 0.25 * reach, TARGET)
        self.canvas.ring(*self.at(target), reach, max(0.2 * reach, self._line), TARGET)
