"""SMAX, the battles of JaxMARL: a team of units against the suite's scripted enemy. Discrete, several agents."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from goalward.envs.base import Discrete, TimeStep
from goalward.envs.composed import ComposedEnv, GoalFactory, RewardFactory
from goalward.envs.draw import AGENT_COLOURS, FLOOR, WALL, Canvas, Colour, Image
from goalward.envs.imports import postpone, quiet_import
from goalward.errors import unknown_name
from goalward.goals.smax import ZeroTotalHealth
from goalward.rewards.smax import Dense

postpone("jaxmarl", "jaxmarl.environments")
with quiet_import():
    from jaxmarl.environments.smax.heuristic_enemy import HeuristicPolicyState
    from jaxmarl.environments.smax.heuristic_enemy_smax_env import HeuristicEnemySMAX as Suite
    from jaxmarl.environments.smax.heuristic_enemy_smax_env import State as BattleState
    from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO
    from jaxmarl.environments.smax.smax_env import State as UnitState

NUM_MOVES = 5  # up, right, down, left, stop; action 5 + e attacks enemy e
_PIXELS = 256  # a map of 32 x 32 is large for its units
_LARGER_THAN_LIFE = 1.5  # at true size a marine would be six pixels across
_GRID_SPACING = 4.0  # the unit of length of a picture
_ALLY, _ENEMY = AGENT_COLOURS[:2]
_CORPSE: Colour = (190, 190, 184)


class SmaxState(NamedTuple):
    """Both teams, U units: the A allies first, then the E enemies. Positions are (x, y) on a map of 32 x 32."""

    position: jax.Array  # [U, 2] float32
    health: jax.Array  # [U] float32, points
    unit_type: jax.Array  # [U] uint8
    cooldown: jax.Array  # [U] float32, seconds until the weapon is ready
    last_move: jax.Array  # [U, 2] float32, direction of the last step
    last_attack: jax.Array  # [U] int32, attack action of the last step, 0 if none
    enemy_heading: jax.Array  # [E, 2] float32, where the scripted enemy walks when it sees nobody
    enemy_victim: jax.Array  # [E] int32, whom it attacked last, -1 if nobody

    @property
    def alive(self) -> jax.Array:
        """[U] bool; the suite counts a unit without health as dead."""
        return self.health > 0.0


class Smax(ComposedEnv):
    """The allies of an SMAX scenario against the heuristic enemy; an episode ends when a side is dead.

    Observation and mask are the suite's own, without its world state. `scenario` is any name that jaxmarl knows.
    """

    def __init__(
        self,
        *,
        scenario: str = "3m",
        max_steps: int = 101,  # as long as the suite's own episodes, whose limit of 100 takes effect a step late
        goal: GoalFactory = ZeroTotalHealth,
        reward: RewardFactory = Dense,
    ) -> None:
        if str(scenario) not in MAP_NAME_TO_SCENARIO:
            raise unknown_name("scenario of smax", str(scenario), MAP_NAME_TO_SCENARIO)
        self.suite = cast(Any, Suite)(scenario=MAP_NAME_TO_SCENARIO[str(scenario)])
        self.num_allies: int = self.suite.num_allies
        self.num_enemies: int = self.suite.num_enemies
        self.map_size = float(self.suite.map_width)
        self._teams = jnp.asarray([0.0] * self.num_allies + [1.0] * self.num_enemies)
        # One entry per type of unit.
        self.max_health: jax.Array = self.suite.unit_type_health
        self.sight_range: jax.Array = self.suite.unit_type_sight_ranges
        super().__init__(
            name=f"smax/{scenario}",
            obs_dim=self.suite.obs_size,
            action_space=Discrete(self.suite.num_ally_actions),
            max_steps=max_steps,
            num_agents=self.num_allies,
            goal=goal,
            reward=reward,
        )

    def reset(self, key: jax.Array) -> tuple[SmaxState, TimeStep]:
        """Returns a battle with both teams at random places, of random types where the scenario says so."""
        obs, battle = self.suite.reset(key)
        state = _from_suite(battle)
        return state, self._view(battle, state, obs, jnp.zeros(self.num_allies))

    def step(self, key: jax.Array, state: SmaxState, action: jax.Array) -> tuple[SmaxState, TimeStep]:
        """Returns the battle half a second later; the dead stay where they fell."""
        actions = dict(zip(self.suite.agents, action, strict=True))
        # `step_env` and not `step`, which would start the next battle in the place of the one that ends.
        obs, battle, *_ = self.suite.step_env(key, self._to_suite(state), actions)
        moved = _from_suite(battle)
        return moved, self._view(battle, moved, obs, self.reward(state, action, moved))

    def is_won(self, state: SmaxState) -> jax.Array:
        """Returns [] bool: every enemy is dead and at least one ally is not; a draw is no win."""
        return jnp.any(state.alive[: self.num_allies]) & ~jnp.any(state.alive[self.num_allies :])

    def render(self, state: SmaxState) -> Image:
        """Returns a picture of the map, y upwards: allies blue, enemies orange, the filled part is their health."""
        units = jax.tree.map(np.asarray, state)
        extent = self.map_size / _GRID_SPACING
        places = [(float(x), extent - float(y)) for x, y in units.position / _GRID_SPACING]
        radii = _LARGER_THAN_LIFE * np.asarray(self.suite.unit_type_radiuses)[units.unit_type] / _GRID_SPACING
        filled = radii * np.sqrt(units.health / np.asarray(self.max_health)[units.unit_type])
        colours = [_ALLY] * self.num_allies + [_ENEMY] * self.num_enemies
        canvas = Canvas(extent, _PIXELS)
        canvas.grid(int(extent))
        for start, end in pairwise(((0.0, 0.0), (extent, 0.0), (extent, extent), (0.0, extent), (0.0, 0.0))):
            canvas.line(start, end, 0.17, WALL)
        for unit in np.flatnonzero(~units.alive):
            canvas.ring(*places[unit], 0.6 * radii[unit], 0.07, _CORPSE)
        for shooter, victim in self._shots(units):
            canvas.line(places[shooter], places[victim], 0.06, _tint(colours[shooter], 0.5))
        for unit in np.flatnonzero(units.alive):
            canvas.disc(*places[unit], radii[unit] + 0.03, FLOOR)
            canvas.disc(*places[unit], radii[unit], _tint(colours[unit], 0.4))
            canvas.disc(*places[unit], filled[unit], colours[unit])
        return canvas.image()

    def _shots(self, units: SmaxState) -> Iterator[tuple[int, int]]:
        """Yields (shooter, victim) for every living unit that attacked somebody within its range."""
        reach = np.asarray(self.suite.unit_type_attack_ranges)[units.unit_type]
        for shooter in np.flatnonzero(units.alive & (units.last_attack >= NUM_MOVES)):
            target = int(units.last_attack[shooter]) - NUM_MOVES
            # Allies number their targets in the order of the units, enemies against it.
            victim = self.num_allies + (target if shooter < self.num_allies else -1 - target)
            if np.linalg.norm(units.position[shooter] - units.position[victim]) < reach[shooter]:
                yield int(shooter), victim

    def _view(self, battle: Any, state: SmaxState, obs: dict[str, jax.Array], reward: jax.Array) -> TimeStep:
        agents = self.suite.agents
        allowed = self.suite.get_avail_actions(battle)
        allies, enemies = jnp.split(state.alive, [self.num_allies])
        return self.show(
            state,
            obs=jnp.stack([obs[agent] for agent in agents]),
            reward=reward,
            terminated=~jnp.any(allies) | ~jnp.any(enemies),
            success=self.is_won(state),
            action_mask=jnp.stack([allowed[agent] for agent in agents]).astype(bool),
            active=allies,
        )

    def _to_suite(self, state: SmaxState) -> Any:
        units = UnitState(
            unit_positions=state.position,
            unit_alive=state.alive,
            unit_teams=self._teams,
            unit_health=state.health,
            unit_types=state.unit_type,
            unit_weapon_cooldowns=state.cooldown,
            prev_movement_actions=state.last_move,
            prev_attack_actions=state.last_attack,
            # The suite's clock stands still, so that its own time limit never takes part.
            step=jnp.int32(0),
            done=jnp.array(False),
        )
        return BattleState(units, HeuristicPolicyState(state.enemy_heading, state.enemy_victim))


def _from_suite(battle: Any) -> SmaxState:
    units, enemy = battle.state, battle.enemy_policy_state
    return SmaxState(
        position=units.unit_positions,
        health=units.unit_health,
        unit_type=units.unit_types,
        cooldown=units.unit_weapon_cooldowns,
        last_move=units.prev_movement_actions,
        last_attack=units.prev_attack_actions.astype(jnp.int32),
        enemy_heading=enemy.default_target,
        enemy_victim=jax.lax.convert_element_type(enemy.last_attacked_enemy, jnp.int32),
    )


def _tint(colour: Colour, strength: float) -> Colour:
    """Returns a colour mixed with that of the floor."""
    red, green, blue = (round(strength * c + (1.0 - strength) * f) for c, f in zip(colour, FLOOR, strict=True))
    return red, green, blue
