"""Pictures of a policy at work."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from goalward.envs.base import (
    Episode,
    GoalEnv,
    Survey,
    SurveyNames,
    advance_episode,
    is_over,
    render,
    start_episode,
)
from goalward.run.directory import write_json
from goalward.run.memory import require_memory_for_film
from goalward.run.policy import Policy

_HOLD = 6  # frames that the last state of an episode is shown for
_WON, _LOST = (0, 158, 115), (213, 94, 0)
_FRAME_MS = 110
_MAX_FRAMES = 120


def save_episodes(path: Path, env: GoalEnv, policy: Policy, key: jax.Array, num_episodes: int) -> None:
    """Writes an animation of sampled episodes side by side; a green frame means solved, an orange one not.

    Long episodes are shown in strides, so that no film has more than about 120 frames.
    """
    stride = math.ceil(env.spec.max_steps / _MAX_FRAMES)
    require_memory_for_film(jax.eval_shape(lambda k: record_episode(env, policy, k, stride), key), num_episodes)
    path.parent.mkdir(parents=True, exist_ok=True)  # before anything is computed, in case that it cannot be written
    record = jax.jit(jax.vmap(lambda k: record_episode(env, policy, k, stride)))
    episodes = _as_numpy(record(jax.random.split(key, num_episodes)))
    films = [_film(env, jax.tree.map(lambda x, i=i: x[i], episodes)) for i in range(num_episodes)]
    length = max(len(film) for film in films)
    films = [film + [film[-1]] * (length + _HOLD - len(film)) for film in films]
    columns = min(3, num_episodes)
    frames = [Image.fromarray(_mosaic([film[t] for film in films], columns)) for t in range(length + _HOLD)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=_FRAME_MS, loop=0)


def save_survey(path: Path, env: GoalEnv, policy: Policy, key: jax.Array) -> None:
    """Writes V and the greedy action on every cell of a grid at the start of one episode, as JSON."""

    def look(key: jax.Array) -> tuple[Survey, jax.Array, jax.Array]:
        survey: Survey = env.survey(key)  # type: ignore[attr-defined]
        seen = survey.step.obs, survey.step.goal, survey.step.action_mask
        return survey, policy.value(*seen)[..., 0], policy.act(*seen)[..., 0]

    survey, value, action = jax.device_get(jax.jit(look)(key))
    names: SurveyNames = env.survey_names  # type: ignore[attr-defined]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            **names._asdict(),
            "is_free": survey.is_free.tolist(),  # [H][W]
            "target": survey.target.tolist(),  # row, column
            "value": value.astype(float).tolist(),  # [F][H][W]
            "action": action.tolist(),  # [F][H][W]
        },
    )


def record_episode(env: GoalEnv, policy: Policy, key: jax.Array, stride: int) -> Episode:
    """Returns one sampled episode [F, ...] at its start and after every `stride` steps; it stands still once over."""
    key_start, key_run = jax.random.split(key)
    first = start_episode(env, key_start)

    def one_step(time: jax.Array, episode: Episode) -> Episode:
        key_act, key_step = jax.random.split(jax.random.fold_in(key_run, time))
        step = episode.step
        moved = advance_episode(env, key_step, episode, policy.act(step.obs, step.goal, step.action_mask, key_act))
        return jax.tree.map(lambda a, b: jnp.where(is_over(step), a, b), episode, moved)

    def one_frame(episode: Episode, frame: jax.Array) -> tuple[Episode, Episode]:
        episode = jax.lax.fori_loop(frame * stride, (frame + 1) * stride, one_step, episode)
        return episode, episode

    _, rest = jax.lax.scan(one_frame, first, jnp.arange(math.ceil(env.spec.max_steps / stride)))
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)


def _film(env: GoalEnv, episode: Episode) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """Returns the frames of one recorded episode up to its end."""
    over = np.asarray(is_over(episode.step))
    last = int(np.argmax(over)) if over.any() else len(over) - 1
    frames = []
    for t in range(last + 1):
        outcome = (_WON if bool(np.all(episode.step.success[t])) else _LOST) if over[t] else None
        frames.append(_framed(render(env, jax.tree.map(lambda x, t=t: x[t], episode.state)), outcome))
    return frames


def _as_numpy(tree: Any) -> Any:
    """Returns arrays of the host, which are quick to index; keys as the numbers they are made of."""

    def plain(x: jax.Array) -> Any:
        return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)

    return jax.tree.map(plain, tree)


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
