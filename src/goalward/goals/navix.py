"""Goals of Navix; the state's `entities` hold the player, the goal cell and, in some tasks, a key and a door."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from goalward.errors import UserError


class Position:
    """Stand on the goal cell: (row, column) over the size of the grid."""

    name = "position"
    dim = 2

    def __init__(self, env: Any) -> None:
        self._size = jnp.asarray(env.grid_shape, jnp.float32)[None]

    def achieved(self, state: Any) -> jax.Array:
        """Returns [1, 2], where the player is."""
        return state.entities["player"].position.astype(jnp.float32) / self._size

    def target(self, state: Any) -> jax.Array:
        """Returns [1, 2], where the goal cell is."""
        return state.entities["goal"].position.astype(jnp.float32) / self._size


class Progress:
    """Bring key to door and player to goal: one number, 1 on the goal cell and less everywhere else.

    It is 1 - (d_key + d_player) / (2 D), where d_key is the Manhattan distance from the key to the door and 0 once
    the door is open, d_player that from the player to the goal, and D the longest one between inner cells.
    """

    name = "progress"
    dim = 1

    def __init__(self, env: Any) -> None:
        if (env.num_of_kind.get("key"), env.num_of_kind.get("door")) != (1, 1):
            raise UserError(
                f"The goal 'progress' needs a task with one key and one door; found {env.env_id}. "
                "Choose the goal 'position', or an id such as Navix-DoorKey-Random-16x16-v0."
            )
        height, width = env.grid_shape
        self._longest = float(height - 3 + width - 3)

    def achieved(self, state: Any) -> jax.Array:
        """Returns [1, 1], how far the player has come."""
        player, key, door, goal = (state.entities[name] for name in ("player", "key", "door", "goal"))
        # The suite moves a key that is held off the map. Dropping it does not empty the pocket, and it still opens.
        is_held = player.pocket == key.id
        carried = jnp.where(is_held[:, None], player.position, key.position)
        key_to_door = jnp.where(door.open, 0, _manhattan(carried, door.position))
        left = key_to_door + _manhattan(player.position, goal.position)
        return (1.0 - left.astype(jnp.float32) / (2.0 * self._longest))[:, None]

    def target(self, state: Any) -> jax.Array:
        """Returns [1, 1], a one."""
        del state
        return jnp.ones((1, 1))


def _manhattan(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.abs(a - b).sum(-1)
