"""Ant: a robot on four legs walks to a point. Continuous, single agent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np

from goalward.envs.composed import GoalFactory, RewardFactory, require_number
from goalward.envs.draw import FLOOR, Image
from goalward.envs.imports import quiet_import
from goalward.envs.jaxgcrl.base import RobotState, RobotTask, TopView
from goalward.envs.jaxgcrl.physics import RobotPhysics, brax_model, load_system, require_backend
from goalward.errors import UserError
from goalward.goals.jaxgcrl import Position
from goalward.rewards.jaxgcrl import Dense

with quiet_import():
    import mujoco

Wall = tuple[float, float, float, float]  # x and y of the middle, half the length in x and in y; metres

_NOISE = 0.1  # of the start: half the range of coordinates, standard deviation of velocities
_LOWEST, _HIGHEST = 0.2, 1.0  # metres; a torso outside has fallen or been thrown up
# From the torso to each hip; a thigh goes on for as much, a shin for twice as much.
_HIPS = 0.2 * np.array([(1, 1, 0), (-1, 1, 0), (-1, -1, 0), (1, -1, 0)])
_ANKLE_AXES = np.array([(-1, 1, 0), (1, 1, 0), (-1, 1, 0), (1, 1, 0)]) / np.sqrt(2.0)


class AntPhysics(RobotPhysics):
    """Brax's ant among walls, with a target that nothing touches.

    q: torso xyz and quaternion, 8 joints, target xy.
    """

    obs_dim = 29
    target_dim = 2
    reach = 0.5

    def __init__(self, backend: str, walls: Iterable[Wall] = (), wall_height: float = 0.0) -> None:
        system = load_system(build_xml(walls, wall_height))
        frames = 5
        if backend in ("spring", "positional"):
            system = system.tree_replace({"opt.timestep": 0.005})
            frames = 10
        if backend == "positional":
            system = system.replace(actuator=system.actuator.replace(gear=jnp.full(8, 200.0)))
        if backend == "mjx":
            system = system.tree_replace(
                {
                    "opt.solver": mujoco.mjtSolver.mjSOL_NEWTON,
                    "opt.disableflags": mujoco.mjtDisableBit.mjDSBL_EULERDAMP,
                    "opt.iterations": 1,
                    "opt.ls_iterations": 4,
                }
            )
        super().__init__(sys=system, backend=backend, n_frames=frames)

    def place(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the torso's xy and the target's xy, [2] each."""
        raise NotImplementedError

    def start(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns a standing ant, a little off its usual pose."""
        key_place, key_q, key_qd = jax.random.split(key, 3)
        torso, target = self.place(key_place)
        q = self.sys.init_q[2:15] + jax.random.uniform(key_q, (13,), minval=-_NOISE, maxval=_NOISE)
        # Physics reads a quaternion as if it were normalised; JaxGCRL shows it as drawn in the first observation.
        q = q.at[1:5].divide(jnp.linalg.norm(q[1:5]))
        qd = _NOISE * jax.random.normal(key_qd, (14,))
        return jnp.concatenate([torso, q, target]), jnp.concatenate([qd, jnp.zeros(2)])

    def observe(self, full: Any) -> jax.Array:
        """Returns [29]: coordinates and velocities of torso and joints."""
        return jnp.concatenate([full.q[:-2], full.qd[:-2]])

    def position(self, full: Any) -> jax.Array:
        """Returns [2], the torso."""
        return full.q[:2]

    def target(self, full: Any) -> jax.Array:
        """Returns [2]."""
        return full.x.pos[-1, :2]

    def has_fallen(self, full: Any) -> jax.Array:
        """Returns whether the torso is too low or too high; physics that came apart (NaN) counts as a fall."""
        height = full.q[2]
        return ~((height >= _LOWEST) & (height <= _HIGHEST))


class OpenAntPhysics(AntPhysics):
    """Starts in the middle, targets on a circle."""

    def __init__(self, backend: str, goal_distance: float) -> None:
        self._goal_distance = goal_distance
        super().__init__(backend)

    def place(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns a start near the origin, and a target in a uniform direction from the origin."""
        key_start, key_angle = jax.random.split(key)
        angle = 2.0 * jnp.pi * jax.random.uniform(key_angle)
        target = self._goal_distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        return jax.random.uniform(key_start, (2,), minval=-_NOISE, maxval=_NOISE), target


class AntTask(RobotTask):
    """An ant; subclasses say where.

    Observation: torso xyz and quaternion, 8 joints, the velocities of all. Action: 8 torques, each in [-1, 1].
    """

    pays_progress = True
    magnify = 1.0  # how much larger than life the ant is drawn

    def backdrop(self) -> TopView:
        """Returns a picture of what stands around."""
        raise NotImplementedError

    def render(self, state: RobotState) -> Image:
        """Returns a picture from above; the pale spot is the ant's front."""
        view = self.backdrop()
        view.goal(state, self.reach)
        torso, legs, front = ant_skeleton(np.asarray(state.physics.q), self.magnify)
        for leg in legs:
            view.limb(leg, 0.16 * self.magnify)
        view.disc(torso, 0.25 * self.magnify)
        view.disc(front, 0.1 * self.magnify, FLOOR)
        return view.canvas.image()


class Ant(AntTask):
    """An ant on an open plane; targets lie `goal_distance` metres from the origin, where it starts."""

    magnify = 2.0

    def __init__(
        self,
        *,
        goal_distance: float = 10.0,
        backend: str = "spring",
        max_steps: int = 1000,
        goal: GoalFactory = Position,
        reward: RewardFactory = Dense,
    ) -> None:
        name = "jaxgcrl/ant"
        require_backend(name, backend)
        require_number(name, 1.0, 100.0, goal_distance=goal_distance)
        self.goal_distance = goal_distance
        variant = "" if goal_distance == 10.0 else f"-{goal_distance:g}m"
        variant += "" if backend == "spring" else f"-{backend}"
        super().__init__(
            OpenAntPhysics(backend, goal_distance), name=name + variant, max_steps=max_steps, goal=goal, reward=reward
        )

    def backdrop(self) -> TopView:
        """Returns an empty plane with the circle on which targets lie."""
        edge = self.goal_distance + 1.5
        view = TopView(-edge, edge)
        view.circle(self.goal_distance)
        view.circle(self.goal_distance / 2)
        return view


def build_xml(walls: Iterable[Wall], wall_height: float) -> str:
    """Returns Brax's model of the ant with a target and walls."""
    root = ElementTree.fromstring(brax_model("ant.xml"))
    find(root, "custom/numeric[@name='init_qpos']").attrib["data"] += " 0 0"
    find(root, "worldbody/geom[@name='floor']").set("size", "300 300 40")
    world = find(root, "worldbody")
    target = ElementTree.SubElement(world, "body", name="target", pos="0 0 0.01")
    for name, axis in (("target_x", "1 0 0"), ("target_y", "0 1 0")):
        slide = {"type": "slide", "axis": axis, "range": "-1000 1000", "limited": "true"}
        ElementTree.SubElement(target, "joint", slide, name=name, armature="0", damping="0", stiffness="0")
    ElementTree.SubElement(
        target, "geom", name="target", type="sphere", size="0.5", mass="1", contype="0", conaffinity="0"
    )
    walls = tuple(walls)
    for x, y, half_x, half_y in walls:
        ElementTree.SubElement(
            world,
            "geom",
            type="box",
            pos=f"{x} {y} {wall_height / 2}",
            size=f"{half_x} {half_y} {wall_height / 2}",
            contype="1",
            conaffinity="1",
        )
    if walls:  # what JaxGCRL lets walls touch: the torso, the four limbs from torso to hip, and the feet
        for geom in world.iter("geom"):
            name = geom.get("name", "")
            if name == "torso_geom" or name.startswith("aux_") or name.endswith("_foot_geom"):
                geom.set("conaffinity", "1")
    return ElementTree.tostring(root, encoding="unicode")


def find(root: ElementTree.Element, path: str) -> ElementTree.Element:
    """Returns the element at `path` of Brax's model."""
    element = root.find(path)
    if element is None:
        raise UserError(f"Expected '{path}' in Brax's ant.xml; found none. Install brax 0.14.")
    return element


def ant_skeleton(q: Any, magnify: float) -> tuple[Any, Any, Any]:
    """Returns the torso [3], torso, hip, knee and foot of each leg [4, 4, 3], and a spot on the torso's front [3]."""
    torso, body = q[:3], _rotation(*q[3:7])
    legs = []
    for hip, axis, swing, bend in zip(_HIPS, _ANKLE_AXES, q[7:15:2], q[8:15:2], strict=True):
        thigh = body @ _rotation(np.cos(swing / 2), 0.0, 0.0, np.sin(swing / 2))
        shin = thigh @ _rotation(np.cos(bend / 2), *(np.sin(bend / 2) * axis))
        legs.append(np.cumsum([np.zeros(3), body @ hip, thigh @ hip, shin @ (2 * hip)], axis=0))
    return torso, torso + magnify * np.stack(legs), torso + magnify * body @ np.array([0.14, 0.0, 0.0])


def _rotation(w: float, x: float, y: float, z: float) -> Any:
    """Returns [3, 3], the rotation of a quaternion."""
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
