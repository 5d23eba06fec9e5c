"""Reacher: a planar arm with two joints brings its tip to a point. Continuous, single agent."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from goalward.envs.composed import GoalFactory, RewardFactory
from goalward.envs.draw import WALL, Image
from goalward.envs.imports import quiet_import
from goalward.envs.jaxgcrl.base import RobotState, RobotTask, TopView
from goalward.envs.jaxgcrl.physics import RobotPhysics, brax_model, load_system, require_backend
from goalward.goals.jaxgcrl import Position
from goalward.rewards.jaxgcrl import Dense

with quiet_import():
    from brax.base import Transform

LINK = 0.1  # metres from the shoulder to the elbow
TIP = 0.11  # metres from the elbow to the tip
HEIGHT = 0.01  # metres; all motion is in this plane
FARTHEST_TARGET = 0.2  # metres from the shoulder


class ReacherPhysics(RobotPhysics):
    """Brax's two-joint arm with the starts and observations of JaxGCRL."""

    obs_dim = 10
    target_dim = 3
    reach = 0.05

    def __init__(self, backend: str) -> None:
        system = load_system(brax_model("reacher.xml"))
        frames = 2
        if backend in ("spring", "positional"):
            system = system.tree_replace({"opt.timestep": 0.005})
            system = system.replace(actuator=system.actuator.replace(gear=jnp.full(2, 25.0)))
            frames = 4
        super().__init__(sys=system, backend=backend, n_frames=frames)

    def start(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns an almost stretched arm, and a target whose distance and direction from the shoulder are uniform."""
        key_q, key_qd, key_distance, key_angle = jax.random.split(key, 4)
        joints = self.sys.init_q[:2] + jax.random.uniform(key_q, (2,), minval=-0.1, maxval=0.1)
        speeds = jax.random.uniform(key_qd, (2,), minval=-0.005, maxval=0.005)
        distance = FARTHEST_TARGET * jax.random.uniform(key_distance)
        angle = 2.0 * jnp.pi * jax.random.uniform(key_angle)
        target = distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        return jnp.concatenate([joints, target]), jnp.concatenate([speeds, jnp.zeros(2)])

    def observe(self, full: Any) -> jax.Array:
        """Returns [10]: cosines and sines of the joints, position and "velocity" of the tip."""
        # JaxGCRL, like Brax, leaves the arm from elbow to tip unrotated here: not quite the speed of the tip.
        velocity = Transform.create(pos=jnp.array([TIP, 0.0, 0.0])).do(full.xd.take(1)).vel
        joints = full.q[:2]
        return jnp.concatenate([jnp.cos(joints), jnp.sin(joints), self.position(full), velocity])

    def position(self, full: Any) -> jax.Array:
        """Returns [3], the tip of the arm."""
        return full.x.take(1).do(Transform.create(pos=jnp.array([TIP, 0.0, 0.0]))).pos

    def target(self, full: Any) -> jax.Array:
        """Returns [3]."""
        return full.x.pos[2]

    def has_fallen(self, full: Any) -> jax.Array:
        """Returns false: the arm is mounted."""
        del full
        return jnp.zeros((), bool)


class Reacher(RobotTask):
    """An arm of 21 cm; targets lie up to 20 cm from its shoulder.

    Observation: see `ReacherPhysics.observe`. Action: torques at shoulder and elbow, each in [-1, 1].
    """

    pays_progress = False

    def __init__(
        self,
        *,
        backend: str = "generalized",
        max_steps: int = 1000,
        goal: GoalFactory = Position,
        reward: RewardFactory = Dense,
    ) -> None:
        name = "jaxgcrl/reacher"
        require_backend(name, backend)
        super().__init__(
            ReacherPhysics(backend),
            name=name if backend == "generalized" else f"{name}-{backend}",
            max_steps=max_steps,
            goal=goal,
            reward=reward,
        )

    def render(self, state: RobotState) -> Image:
        """Returns a picture of the arm and its target."""
        view = TopView(-0.24, 0.24)
        shoulder, elbow = np.cumsum(np.asarray(state.physics.q)[:2])
        joint = LINK * np.array([np.cos(shoulder), np.sin(shoulder)])
        tip = joint + TIP * np.array([np.cos(elbow), np.sin(elbow)])
        view.circle(FARTHEST_TARGET)
        view.goal(state, self.reach)
        view.disc((0.0, 0.0), 0.02, WALL)
        view.limb((np.zeros(2), joint, tip), 0.018)
        view.disc(joint, 0.013)
        view.disc(tip, 0.013)
        return view.canvas.image()
