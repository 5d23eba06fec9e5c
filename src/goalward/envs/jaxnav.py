"""JaxNav of JaxMARL: robots with lidar drive to places of their own through random maps. Continuous, several agents."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from goalward.envs.base import Box, TimeStep
from goalward.envs.composed import ComposedEnv, GoalFactory, RewardFactory, require_number, require_whole
from goalward.envs.draw import AGENT_COLOURS, FLOOR, WALL, Canvas, Colour, Image
from goalward.envs.imports import postpone, quiet_import
from goalward.errors import UserError, unknown_name
from goalward.goals.jaxnav import Distance
from goalward.rewards.jaxnav import Default

postpone("jaxmarl", "jaxmarl.environments")
with quiet_import():
    from jaxmarl.environments.jaxnav.jaxnav_env import JaxNav as Suite
    from jaxmarl.environments.jaxnav.jaxnav_env import State

PLACEMENTS = ("grid", "random")
_SMALLEST_WITH_PATHS = 9  # cells; on a map of 5 x 5, one draw in 600 has no two free cells side by side
_MAX_TURN = math.pi / 6  # radians a second, the bound of the suite's action space
_RADIUS = 0.34  # metres, of a robot in pictures; its hull is a square with sides of half a metre
_ARM = 0.15  # metres, of the cross on a robot that has crashed
_CRASH: Colour = (190, 20, 30)


class JaxNavState(NamedTuple):
    """Lengths in metres, angles in radians, points as (x, y); a cell of the map is a square metre."""

    position: jax.Array  # [N, 2] float32
    heading: jax.Array  # [N] float32, 0 along x
    velocity: jax.Array  # [N, 2] float32, along the heading (m/s) and turning (rad/s)
    target: jax.Array  # [N, 2] float32
    reached: jax.Array  # [N] bool, has been within the goal radius
    crashed: jax.Array  # [N] bool, has touched a wall or a robot; it stands still since
    near: jax.Array  # [N] bool, something is so near that the reward has a penalty for it
    walls: jax.Array  # [H, W] bool, by (y, x)

    @property
    def distance(self) -> jax.Array:
        """[N] float32, the straight line to the target."""
        return jnp.linalg.norm(self.position - self.target, axis=-1)


@contextlib.contextmanager
def _without_its_warnings() -> Iterator[None]:
    """Returns a context without two warnings of the suite about itself: a default of its maps, a cast in its search."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "max_dist_to_goal", UserWarning)
        warnings.filterwarnings("ignore", "scatter inputs have incompatible types", FutureWarning)
        yield


class _Robots(Suite):
    """The suite's environment with a lidar that gives the same ranges in a seventh of the time.

    The suite takes the sine and the cosine of every sample of every beam, and marks the samples that hit a robot by a
    scatter of integers into booleans, which jax has announced to refuse.
    """

    def _lidar_sense(self, idx: jax.Array, state: Any) -> jax.Array:
        """Returns [beams], for robot `idx`, the range of the first sample of each beam that lies in an obstacle."""
        angles = self.lidar_angles + state.theta[idx]
        last = self.lidar_ranges.shape[0] - 1
        ranges = self.lidar_ranges[None, :]
        x = ranges * jnp.cos(angles)[:, None] + state.pos[idx, 0]
        y = ranges * jnp.sin(angles)[:, None] + state.pos[idx, 1]
        hits = state.map_data.at[jnp.floor(y).astype(int), jnp.floor(x).astype(int)].get(mode="clip") == 1
        first_wall = jnp.min(jnp.where(hits, jnp.arange(last + 1)[None, :], last), axis=1)
        ends = jnp.stack([x, y], axis=-1)[:, jnp.array([0, last])]  # [beams, 2, 2], all that the next line reads
        beam_checks: Any = self._lidar_agent_check
        robots = beam_checks(self.agent_range, state.pos, state.theta, ends, idx)  # [N, beams], -1 if none is hit
        first_robot = jnp.min(jnp.where(robots < 0, last, robots), axis=0)
        return self.lidar_ranges[jnp.minimum(first_wall, first_robot)]


class JaxNav(ComposedEnv):
    """`num_agents` robots, half a metre square, on a map of 1 m cells with a wall around it.

    Observation: 200 lidar ranges over 6 m, minus 0.5; speed over 1 m/s, minus 0.5; turning rate over 0.6 rad/s;
    distance to the target, at most 6 m, over 6 m, minus 0.5; bearing of the target over pi. Actions: the speed, in
    [0, 1] m/s, and the turning rate, in [-pi/6, pi/6] rad/s, to accelerate to.

    Every agent wins or loses for itself: it wins by coming within `goal_radius` of its target, once. It then drives
    on, and may crash. A robot that has touched something stands still for good. The episode ends when every robot
    has arrived or crashed. Targets may be walled off; see `reachability`.
    """

    def __init__(
        self,
        *,
        num_agents: int = 4,
        map_size: int = 11,
        fill: float = 0.6,
        placement: str = "grid",
        valid_path_check: bool = False,
        goal_radius: float = 0.3,
        max_steps: int = 500,
        goal: GoalFactory = Distance,
        reward: RewardFactory = Default,
    ) -> None:
        require_whole("jaxnav", 1, num_agents=num_agents)
        require_whole("jaxnav", 5, map_size=map_size)
        require_number("jaxnav", 0.0, 0.9, fill=fill)
        require_number("jaxnav", 0.01, float(map_size), goal_radius=goal_radius)
        if placement not in PLACEMENTS:
            raise unknown_name("placement of jaxnav", str(placement), PLACEMENTS)
        if type(valid_path_check) is not bool:
            raise UserError(f"valid_path_check of jaxnav must be true or false; found {valid_path_check}.")
        _require_room(num_agents, map_size, fill, placement, valid_path_check)
        map_params = {
            "map_size": (map_size, map_size),
            "fill": fill,
            "sample_test_case_type": placement,
            "valid_path_check": valid_path_check,
        }
        with _without_its_warnings():
            self.suite: Any = _Robots(num_agents=num_agents, goal_radius=goal_radius, map_params=map_params)
        self.diagonal = math.hypot(map_size, map_size)
        self._map_size = map_size
        super().__init__(
            name=f"jaxnav/{num_agents}-agent{'s' if num_agents > 1 else ''}",
            obs_dim=self.suite.lidar_num_beams + 4,
            action_space=Box((0.0, -_MAX_TURN), (1.0, _MAX_TURN)),
            max_steps=max_steps,
            num_agents=num_agents,
            goal=goal,
            reward=reward,
        )

    def reset(self, key: jax.Array) -> tuple[JaxNavState, TimeStep]:
        """Returns an episode on a map of its own."""
        with _without_its_warnings():
            obs, full = self.suite.reset(key)
        obs = self._stacked(obs)
        state = self._from_suite(full, obs)
        return state, self._view(state, obs, jnp.zeros(self.spec.num_agents))

    def step(self, key: jax.Array, state: JaxNavState, action: jax.Array) -> tuple[JaxNavState, TimeStep]:
        """Returns the state a tenth of a second later."""
        actions = dict(zip(self.suite.agents, action, strict=True))
        # `step_env` and not `step`, which draws a map at every step and puts it in the place of the last state.
        obs, full, *_ = self.suite.step_env(key, self.to_suite(state), actions)
        obs = self._stacked(obs)
        moved = self._from_suite(full, obs)
        return moved, self._view(moved, obs, self.reward(state, action, moved))

    def to_suite(self, state: JaxNavState) -> State:
        """Returns the suite's state; to the suite, every step is the first of its episode."""
        never = jnp.zeros(self.spec.num_agents, bool)
        return State(
            pos=state.position,
            theta=state.heading,
            vel=state.velocity,
            done=never,
            term=never,
            goal_reached=state.reached,
            move_term=state.crashed,
            step=0,
            ep_done=False,
            goal=state.target,
            map_data=state.walls.astype(jnp.int32),
            rew_lambda=self.suite.rew_lambda,
        )

    def render(self, state: JaxNavState) -> Image:
        """Returns a picture of the map, y upwards: robots are discs, crossed after a crash, and targets rings."""
        size = self._map_size
        canvas = Canvas(size)
        for row, col in np.argwhere(np.asarray(state.walls)):
            canvas.cell(col, size - 1 - row, WALL)
        robots = zip(*(np.asarray(x) for x in state[:-1]), AGENT_COLOURS * len(state.position), strict=False)
        for position, heading, _, target, reached, crashed, _, colour in robots:
            x, y = position[0], size - position[1]
            canvas.ring(target[0], size - target[1], self.suite.goal_radius, 0.12, colour)
            if reached:
                canvas.disc(target[0], size - target[1], 0.5 * self.suite.goal_radius, colour)
            canvas.disc(x, y, _RADIUS, colour)
            if crashed:
                canvas.ring(x, y, _RADIUS, 0.1, _CRASH)
                for side in (-_ARM, _ARM):
                    canvas.line((x - _ARM, y - side), (x + _ARM, y + side), 0.1, FLOOR)
            else:
                ahead = (x + 1.4 * _RADIUS * math.cos(heading), y - 1.4 * _RADIUS * math.sin(heading))
                canvas.line((x, y), ahead, 0.12, WALL)
        return canvas.image()

    def _view(self, state: JaxNavState, obs: jax.Array, reward: jax.Array) -> TimeStep:
        over = state.reached | state.crashed
        return self.show(
            state,
            obs=obs[:, :-1],  # the last number is the share of the own reward, the same for all and always
            reward=reward,
            terminated=jnp.all(over),
            success=state.reached,
            active=~over,
            metrics={
                "team_success": jnp.all(state.reached),
                "crashed": jnp.mean(state.crashed, dtype=jnp.float32),
            },
        )

    def _stacked(self, by_agent: dict[str, jax.Array]) -> jax.Array:
        return jnp.stack([by_agent[agent] for agent in self.suite.agents])

    def _from_suite(self, full: State, obs: jax.Array) -> JaxNavState:
        ranges = self.suite.unnormalise_lidar(obs[:, : self.suite.lidar_num_beams])
        near = jnp.any(ranges <= self.suite.lidar_thresh + self.suite.rad, axis=-1)
        return JaxNavState(
            position=full.pos,
            heading=full.theta,
            velocity=full.vel,
            target=full.goal,
            reached=full.goal_reached,
            crashed=full.move_term,
            near=near,
            walls=full.map_data.astype(bool),
        )


class Reachability(NamedTuple):
    """What a policy can win at best; robots are taken as points that do not stand in each other's way."""

    agents: float  # share of agents whose target can be reached
    teams: float  # share of maps on which all can


def reachability(env: JaxNav, key: jax.Array, num_maps: int = 500) -> Reachability:
    """Returns the share of targets, and of whole teams' targets, that a chain of free cells joins to their agents."""

    def draw(key: jax.Array) -> tuple[jax.Array, ...]:
        state, _ = env.reset(key)
        return state.walls, state.position, state.target

    walls, starts, targets = (np.asarray(x) for x in jax.jit(jax.vmap(draw))(jax.random.split(key, num_maps)))
    maps, agents = np.indices(starts.shape[:2])
    region = np.zeros((*starts.shape[:2], *walls.shape[1:]), bool)  # [maps, N, H, W]
    region[maps, agents, starts[..., 1].astype(int), starts[..., 0].astype(int)] = True
    size = 0
    while region.sum() > size:
        size = region.sum()
        # There is a wall around the map, so nothing gets across by rolling.
        neighbours = (np.roll(region, shift, axis) for shift in (-1, 1) for axis in (-1, -2))
        region = np.logical_or.reduce([region, *neighbours]) & ~walls[:, None]
    reachable = region[maps, agents, targets[..., 1].astype(int), targets[..., 0].astype(int)]
    return Reachability(float(reachable.mean()), float(reachable.all(-1).mean()))


def _require_room(num_agents: int, map_size: int, fill: float, placement: str, valid_path_check: bool) -> None:
    """Raises where the suite, which draws places until they fit, might look for them for ever."""
    cells = (map_size - 2) ** 2
    free = cells - math.floor(cells * fill)
    # On the grid every agent needs a free cell of its own and one more; elsewhere they must also keep a distance.
    most = free - 1 if placement == "grid" else free // 8
    if num_agents > most:
        raise UserError(
            f"num_agents of jaxnav must be at most {most} with map_size {map_size}, fill {fill} and placement "
            f"'{placement}'; found {num_agents}. Choose a larger map_size or a smaller fill."
        )
    if valid_path_check and map_size < _SMALLEST_WITH_PATHS:
        raise UserError(
            f"map_size of jaxnav must be at least {_SMALLEST_WITH_PATHS} with valid_path_check, since on smaller maps "
            f"walls may leave no two cells joined; found {map_size}."
        )
