"""Pictures of a policy at work."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

from goalward.envs.base import GoalEnv, advance_episode, is_over, render, start_episode
from goalward.run.policy import Policy

_HOLD = 6  # frames that the last state of an episode is shown for
_WON, _LOST = (0, 158, 115), (213, 94, 0)
_FRAME_MS = 110


def save_episodes(path: Path, env: GoalEnv, policy: Policy, key: jax.Array, num_episodes: int) -> None:
    """Writes an animation of sampled episodes side by side; a green frame means solved, an orange one not."""
    path.parent.mkdir(parents=True, exist_ok=True)  # first: a place that cannot be written should cost no time
    act, advance = jax.jit(policy.act), jax.jit(partial(advance_episode, env))
    films = [film_episode(env, act, advance, k) for k in jax.random.split(key, num_episodes)]
    length = max(len(film) for film in films)
    films = [film + [film[-1]] * (length + _HOLD - len(film)) for film in films]
    columns = min(3, num_episodes)
    frames = [Image.fromarray(_mosaic([film[t] for film in films], columns)) for t in range(length + _HOLD)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=_FRAME_MS, loop=0)


def film_episode(env: GoalEnv, act: Any, advance: Any, key: jax.Array) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """Returns the frames of one sampled episode; `act` and `advance` come compiled, once for all episodes."""
    key_start, key_run = jax.random.split(key)
    episode = start_episode(env, key_start)
    frames = [_framed(render(env, episode.state), None)]
    for time in range(env.spec.max_steps):
        key_act, key_step = jax.random.split(jax.random.fold_in(key_run, time))
        action = act(episode.step.obs, episode.step.goal, episode.step.action_mask, key_act)
        episode = advance(key_step, episode, action)
        over = bool(is_over(episode.step))
        outcome = (_WON if bool(episode.step.success) else _LOST) if over else None
        frames.append(_framed(render(env, episode.state), outcome))
        if over:
            break
    return frames


def _framed(
    image: np.ndarray[Any, np.dtype[np.uint8]], colour: tuple[int, int, int] | None
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    width = max(2, image.shape[0] // 40)
    framed = np.full((image.shape[0] + 2 * width, image.shape[1] + 2 * width, 3), 255, np.uint8)
    if colour is not None:
        framed[:] = colour
    framed[width:-width, width:-width] = image
    return framed


def _mosaic(images: list[Any], columns: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    blank = np.full_like(images[0], 255)
    images = images + [blank] * (-len(images) % columns)
    rows = [np.concatenate(images[i : i + columns], axis=1) for i in range(0, len(images), columns)]
    return np.concatenate(rows, axis=0)
