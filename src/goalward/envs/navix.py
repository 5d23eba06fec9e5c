"""Navix, the grid worlds of MiniGrid in JAX: a player turns, walks, carries and opens. Discrete, single agent."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import navix
import numpy as np
from navix import observations
from navix.components import EMPTY_POCKET_ID
from navix.entities import Goal as GoalCell
from navix.rendering.cache import RenderingCache
from navix.states import State as SuiteState

from goalward.envs.base import Discrete, Survey, SurveyNames, TimeStep
from goalward.envs.composed import ComposedEnv, GoalFactory, RewardFactory
from goalward.envs.draw import AGENT_COLOURS, FLOOR, WALL, Canvas, Colour, Image
from goalward.envs.maps import all_cells
from goalward.envs.tasks import TASKS
from goalward.errors import UserError, unknown_name
from goalward.goals.navix import Position
from goalward.rewards.navix import Shaped

HEADINGS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # east, south, west, north as (row, column)
_VIEW = 7  # cells on a side of what the player sees: it stands in the middle of the last row and looks up
_FLOOR_SYMBOL = (1, 0, 0)  # kind, colour, door state
_WALL_SYMBOL = (2, 5, 0)
_LARGEST_SYMBOL = (10.0, 5.0, 2.0)

_IN_VIEW: Colour = (221, 232, 242)
_PLAYER, _LAVA, _GOAL = AGENT_COLOURS[:3]
_BRASS, _BALL = AGENT_COLOURS[4:6]
_EMPTY_POCKET = int(EMPTY_POCKET_ID)


class NavixState(NamedTuple):
    """The suite's state without its random key, its pictures and its events, of which two remain.

    Entities are the suite's own, by name, each with a leading axis over its instances.
    """

    grid: jax.Array  # [H, W] int8, -1 where there is a wall for good
    entities: dict[str, Any]
    reached: jax.Array  # [] bool, whether the last step led onto the goal
    hit_wall: jax.Array  # [] bool, whether the last step ran into a wall


class Navix(ComposedEnv):
    """Any Navix task that has a goal cell, by its id.

    Observation: the 7 x 7 cells before the player, each as kind / 10, colour / 5 and door state / 2. With
    `append_pose` also what the crop cannot show: row and column over the size of the grid, the heading (east, south,
    west, north) one-hot and, where the task has them, whether the key is held and whether each door is open.
    Actions: turn left, turn right, forward, pick up, drop, toggle, done.
    """

    survey_names = SurveyNames(
        facings=("facing east", "facing south", "facing west", "facing north"),
        actions=("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done"),
    )

    def __init__(
        self,
        *,
        env_id: str,
        max_steps: int = 100,
        append_pose: bool = True,
        goal: GoalFactory = Position,
        reward: RewardFactory = Shaped,
    ) -> None:
        if str(env_id) not in navix.registry():
            raise unknown_name("env_id of Navix:", str(env_id), navix.registry())
        if type(append_pose) is not bool:
            raise UserError(f"append_pose of {_task_name(env_id)} must be true or false; found {append_pose}.")
        # Nothing of the suite's time limit, observation and picture cache is used; these are the cheapest.
        self._suite = navix.make(env_id, observation_fn=observations.none)
        self._no_pictures = RenderingCache(patches=jnp.zeros(()))
        start = jax.eval_shape(self._suite_start, jax.random.key(0))
        _require_goal_cell(env_id, start.entities)
        self.env_id = env_id
        self.grid_shape: tuple[int, int] = start.grid.shape
        self.num_of_kind = {name: kind.position.shape[0] for name, kind in start.entities.items()}
        self._append_pose = append_pose
        self._offsets = jnp.asarray(_view_offsets(), jnp.int32)
        extras = 2 + len(HEADINGS) + ("key" in self.num_of_kind) + self.num_of_kind.get("door", 0)
        super().__init__(
            name=_task_name(env_id),
            obs_dim=3 * _VIEW**2 + append_pose * extras,
            action_space=Discrete(len(self._suite.action_set)),
            max_steps=max_steps,
            goal=goal,
            reward=reward,
        )

    def reset(self, key: jax.Array) -> tuple[NavixState, TimeStep]:
        """Returns an episode in a new layout; the player may stand on the goal, which then counts when re-entered."""
        state = from_suite(self._suite_start(key))
        return state, self._view(state, jnp.zeros(1), state.reached)

    def step(self, key: jax.Array, state: NavixState, action: jax.Array) -> tuple[NavixState, TimeStep]:
        """Returns the state after the action; the suite's own `step`, which resets, is not used."""
        before = to_suite(state, key)
        # On the way the suite writes into the dictionary of entities that it is given; ours is a copy.
        after = self._suite.transitions_fn(before, action[0], self._suite.action_set)
        reached = after.events.goal_reached.happened & _on_goal(after.entities)
        # The suite also counts running into a key that lies on the goal; its termination rule must not see that.
        goal_reached = after.events.goal_reached.replace(happened=reached)
        after = after.replace(events=after.events.replace(goal_reached=goal_reached))
        moved = NavixState(state.grid, after.entities, reached, hit_wall=after.events.wall_hit.happened)
        terminated = self._suite.termination_fn(before, action[0], after)
        return moved, self._view(moved, self.reward(state, action, moved), terminated)

    def render(self, state: NavixState) -> Image:
        """Returns a picture of the grid, what is in it, and the cells that the player sees."""
        return _draw(jax.device_get(state), np.asarray(self._offsets))

    def survey(self, key: jax.Array) -> Survey:
        """Returns one start with the player on every cell, facing every way; see `Survey`."""
        state, _ = self.reset(key)
        no = jnp.zeros((), bool)

        def seen_from(position: jax.Array, direction: jax.Array) -> TimeStep:
            player = state.entities["player"]
            player = player.replace(
                position=position[None].astype(player.position.dtype),
                direction=direction[None].astype(player.direction.dtype),
            )
            return self._view(state._replace(entities={**state.entities, "player": player}), jnp.zeros(1), no)

        on_cells = jax.vmap(jax.vmap(seen_from, (0, None)), (0, None))
        step = jax.vmap(on_cells, (None, 0))(jnp.asarray(all_cells(*self.grid_shape)), jnp.arange(len(HEADINGS)))
        is_free = state.grid == 0
        if "wall" in state.entities:
            is_free = is_free.at[tuple(state.entities["wall"].position.T)].set(False)
        return Survey(step, is_free, state.entities["goal"].position[0].astype(jnp.int32))

    def _suite_start(self, key: jax.Array) -> Any:
        return self._suite.reset(key, self._no_pictures).state

    def observe(self, state: NavixState) -> jax.Array:
        """Returns [1, D], what the player sees."""
        parts = [(self._crop(state).astype(jnp.float32) / jnp.asarray(_LARGEST_SYMBOL)[None, None]).ravel()]
        if self._append_pose:
            player = state.entities["player"]
            parts.append(player.position[0].astype(jnp.float32) / jnp.asarray(self.grid_shape, jnp.float32))
            parts.append(jax.nn.one_hot(player.direction[0], len(HEADINGS)))
            if "key" in state.entities:
                parts.append((player.pocket != _EMPTY_POCKET).astype(jnp.float32))
            if "door" in state.entities:
                parts.append(state.entities["door"].open.astype(jnp.float32))
        return jnp.concatenate(parts)[None]

    def _view(self, state: NavixState, reward: jax.Array, terminated: jax.Array) -> TimeStep:
        return self.show(state, obs=self.observe(state), reward=reward, terminated=terminated, success=state.reached)

    def _crop(self, state: NavixState) -> jax.Array:
        """Returns [7, 7, 3] uint8, `symbolic_first_person` of the suite in a third of its time.

        The suite pads, rolls and turns the whole map; here the cells in view are looked up.
        """
        player = state.entities["player"]
        symbols = observations.symbolic(to_suite(state))  # [H, W, 3]
        cells = player.position[0][None, None] + self._offsets[player.direction[0]]  # [7, 7, 2]
        last = jnp.asarray(self.grid_shape, jnp.int32)[None, None] - 1
        inside = jnp.all((cells >= 0) & (cells <= last), axis=-1, keepdims=True)
        rows, cols = jnp.moveaxis(jnp.clip(cells, 0, last), -1, 0)
        seen = jnp.where(inside, symbols[rows, cols], jnp.asarray(_WALL_SYMBOL, jnp.uint8)[None, None])
        return seen.at[_VIEW - 1, _VIEW // 2].set(jnp.asarray(_FLOOR_SYMBOL, jnp.uint8))


def from_suite(start: Any) -> NavixState:
    """Returns the suite's state as ours, with no step behind it."""
    # Weak types would make a start differ from the state after a step, which then compiles twice.
    entities = jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), start.entities)
    no = jnp.zeros((), bool)
    return NavixState(start.grid.astype(jnp.int8), entities, reached=no, hit_wall=no)


def to_suite(state: NavixState, key: jax.Array | None = None) -> Any:
    """Returns the suite's state with no event set, so that what is set after a step happened in that step."""
    return SuiteState(key=key, grid=state.grid, cache=None, entities=dict(state.entities))


def _on_goal(entities: dict[str, Any]) -> jax.Array:
    return jnp.all(entities["player"].position == entities["goal"].position, axis=-1)[0]


def _view_offsets() -> np.ndarray[Any, Any]:
    """Returns [4, 7, 7, 2], where the cells of the crop lie relative to the player, for each heading."""
    ahead = np.arange(_VIEW - 1, -1, -1)[:, None, None]
    aside = np.arange(-(_VIEW // 2), _VIEW // 2 + 1)[None, :, None]
    headings = [(np.array(forward), np.array(HEADINGS[(k + 1) % 4])) for k, forward in enumerate(HEADINGS)]
    return np.stack([ahead * forward + aside * right for forward, right in headings])


def _task_name(env_id: str) -> str:
    registered = (t.name for t in TASKS.values() if t.suite == "navix" and t.arguments.get("env_id") == env_id)
    return next(registered, f"navix/{env_id}")


def _require_goal_cell(env_id: str, entities: dict[str, Any]) -> None:
    # The "goal" of the key corridors is a ball, for which the suite has no event: such an episode is never won.
    if not isinstance(entities.get("goal"), GoalCell):
        raise UserError(
            f"env_id of Navix must name a task with a goal cell to reach; found {env_id}, which has none. "
            "Choose an id of the Empty, DoorKey, FourRooms, LavaGap, SimpleCrossing, Dynamic-Obstacles or DistShift "
            "families."
        )


def _draw(state: NavixState, offsets: np.ndarray[Any, Any]) -> Image:
    """Returns the picture of a state whose arrays are NumPy's; a grid that is not square is padded with wall."""
    entities = state.entities
    player, extent = entities["player"], max(state.grid.shape)
    walls = np.ones((extent, extent), bool)
    walls[: state.grid.shape[0], : state.grid.shape[1]] = state.grid != 0
    canvas = Canvas(extent)
    for y, x in (offsets[player.direction[0]] + player.position[0]).reshape(-1, 2).tolist():
        if 0 <= y < extent and 0 <= x < extent:
            canvas.cell(x, y, _IN_VIEW)
    canvas.grid(extent)
    for y, x in np.argwhere(walls).tolist():
        canvas.cell(x, y, WALL)
    for name, colour in (("wall", WALL), ("lava", _LAVA), ("goal", _GOAL)):
        for y, x in _places(entities, name):
            canvas.cell(x, y, colour)
    for y, x in _places(entities, "ball"):
        canvas.disc(x + 0.5, y + 0.5, 0.36, _BALL)
    for index, (y, x) in enumerate(_places(entities, "door")):
        _draw_door(canvas, x, y, is_open=bool(entities["door"].open[index]))
    for y, x in _places(entities, "key"):
        if x >= 0:  # a key that was picked up is kept at (0, -1)
            _draw_key(canvas, x + 0.5, y + 0.5)
    _draw_player(canvas, player)
    return canvas.image()


def _places(entities: dict[str, Any], name: str) -> list[list[int]]:
    return entities[name].position.tolist() if name in entities else []


def _draw_door(canvas: Canvas, x: float, y: float, *, is_open: bool) -> None:
    if is_open:
        for jamb in (y + 0.08, y + 0.92):
            canvas.line((x + 0.08, jamb), (x + 0.92, jamb), 0.16, _BRASS)
    else:
        canvas.cell(x, y, _BRASS)
        canvas.disc(x + 0.5, y + 0.42, 0.14, WALL)
        canvas.line((x + 0.5, y + 0.42), (x + 0.5, y + 0.72), 0.12, WALL)


def _draw_key(canvas: Canvas, x: float, y: float) -> None:
    canvas.ring(x - 0.18, y, 0.16, 0.12, _BRASS)
    canvas.line((x - 0.02, y), (x + 0.36, y), 0.12, _BRASS)
    for tooth in (0.2, 0.36):
        canvas.line((x + tooth, y), (x + tooth, y + 0.16), 0.1, _BRASS)


def _draw_player(canvas: Canvas, player: Any) -> None:
    """Draws an arrowhead that points where the player looks, with a dot of brass if it holds a key."""
    (row, col), (down, right) = player.position[0] + 0.5, HEADINGS[player.direction[0]]
    tip = (col + 0.36 * right, row + 0.36 * down)
    corners = [(col - 0.28 * right + side * 0.34 * down, row - 0.28 * down + side * 0.34 * right) for side in (-1, 1)]
    # The light rim keeps it visible on the goal.
    for rim, colour in ((0.14, FLOOR), (0.0, _PLAYER)):
        for corner in corners:
            canvas.line(corner, tip, 0.2 + rim, colour)
            canvas.line(corner, (col, row), 0.2 + rim, colour)
        canvas.disc(col, row, 0.24 + rim / 2, colour)
    if player.pocket[0] != _EMPTY_POCKET:
        canvas.disc(col, row, 0.15, _BRASS)
