"""How fast the suites' tasks run through our adapters, resets included, and through the suites' own auto-reset.

    python benchmarks/envs.py [TASK ...] [--envs 64 512] [--steps 64] [--repeats 5]

Both sides take uniformly random allowed actions in one compiled scan and compute the same observation. They are timed
in turn, and medians are compared. Episodes of ours start at random times before their limit, so that resets come as
evenly as in the middle of training. What counts as the observation is ours on both sides: in JaxNav that includes our
lidar, in JaxGCRL the physics with its merged walls. Prints a table and writes results/envs.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from tables import resets

import goalward as gw
from goalward.data.rollout import Worlds, collect, open_worlds
from goalward.envs.tasks import TASKS
from goalward.envs.uniform import uniform_policy
from goalward.run.directory import versions

# reset(keys [E]) -> carry; step(keys [E], carry, actions [E, ...]) -> (carry, obs, mask, reward)
Native = tuple[Callable[..., Any], Callable[..., Any]]


def navix(env: Any) -> Native:
    """Navix's `step`, which resets on the call after an episode's end."""
    import navix as suite
    from navix.rendering.cache import RenderingCache

    from goalward.envs.navix import from_suite

    own = suite.make(env.env_id, max_steps=env.spec.max_steps)
    own = own.replace(observation_fn=lambda state: env.observe(from_suite(state)))
    no_pictures = RenderingCache(patches=jnp.zeros(()))
    everything = jnp.ones((1, env.spec.action_space.size), bool)

    def step(key: jax.Array, timestep: Any, action: jax.Array) -> Any:
        timestep = own.step(timestep, action[0])
        return timestep, timestep.observation, everything, timestep.reward

    return jax.vmap(lambda key: own.reset(key, no_pictures)), jax.vmap(step)


def jaxgcrl(env: Any) -> Native:
    """Brax's wrappers for training, which put back the first state of each environment."""
    from brax.envs.wrappers.training import wrap

    own = wrap(env.physics, episode_length=env.spec.max_steps)

    def step(keys: jax.Array, state: Any, action: jax.Array) -> Any:
        state = own.step(state, action[:, 0])
        return state, state.obs, jnp.ones(action.shape, bool), state.reward

    # The wrappers read the number of environments off keys of the old kind, [E, 2].
    return lambda keys: own.reset(jax.random.key_data(keys)), step


def smax(env: Any) -> Native:
    """JaxMARL's `step`, which draws a reset at every step."""
    return _jaxmarl(env, env.suite, env.suite.get_avail_actions)


def jaxnav(env: Any) -> Native:
    """JaxMARL's `step`, which draws a reset at every step."""
    everything = jnp.ones((env.spec.num_agents, env.spec.action_space.size), bool)
    return _jaxmarl(env, env.suite, lambda state: dict(zip(env.suite.agents, everything, strict=True)))


def _jaxmarl(env: Any, own: Any, allowed: Callable[[Any], dict[str, jax.Array]]) -> Native:
    def stacked(by_agent: dict[str, jax.Array]) -> jax.Array:
        return jnp.stack([by_agent[agent] for agent in own.agents])

    def step(key: jax.Array, state: Any, action: jax.Array) -> Any:
        obs, state, reward, _, _ = own.step(key, state, dict(zip(own.agents, action, strict=True)))
        return state, stacked(obs), stacked(allowed(state)).astype(bool), stacked(reward)

    return jax.vmap(lambda key: own.reset(key)[1]), jax.vmap(step)


def connector(env: Any) -> Native:
    """Jumanji's `AutoResetWrapper`."""
    from jumanji.wrappers import AutoResetWrapper

    from goalward.envs.connector import from_suite

    own = AutoResetWrapper(env.suite)

    def step(key: jax.Array, state: Any, action: jax.Array) -> Any:
        state, timestep = own.step(state, action)
        return state, env.observe(from_suite(state)), state.action_mask, timestep.reward

    return jax.vmap(lambda key: own.reset(key)[0]), jax.vmap(step)


NATIVE = {"navix": navix, "jaxgcrl": jaxgcrl, "smax": smax, "connector": connector, "jaxnav": jaxnav}


def our_loop(env: Any, num_envs: int, num_steps: int) -> tuple[Any, Any]:
    """Returns init(key) and run(key, carry), both compiled."""
    policy = uniform_policy(env)

    def act(key: jax.Array, obs: jax.Array, goal: jax.Array, mask: jax.Array) -> Any:
        action = policy(key, obs, goal, mask)
        return obs, action, action

    def init(key: jax.Array) -> Worlds:
        key_open, key_time = jax.random.split(key)
        worlds = open_worlds(env, key_open, num_envs)
        elapsed = jax.random.randint(key_time, (num_envs,), 0, env.spec.max_steps)
        return worlds._replace(episodes=worlds.episodes._replace(elapsed=elapsed))

    def run(key: jax.Array, worlds: Worlds) -> tuple[Worlds, jax.Array]:
        worlds, rollout = collect(env, act, key, worlds, num_steps)
        return worlds, rollout.obs.sum() + rollout.reward.sum()

    return jax.jit(init), jax.jit(run)


def native_loop(env: Any, native: Native, num_envs: int, num_steps: int) -> tuple[Any, Any]:
    """Returns init(key) and run(key, carry), both compiled."""
    reset, step = native
    policy = uniform_policy(env)
    spec = env.spec
    everything = jnp.ones((num_envs, spec.num_agents, spec.action_space.size), bool)

    def init(key: jax.Array) -> Any:
        return reset(jax.random.split(key, num_envs)), everything

    def run(key: jax.Array, carry: Any) -> tuple[Any, jax.Array]:
        def one_step(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            key_act, key_step = jax.random.split(key)
            state, mask = carry
            blank = jnp.zeros((num_envs, spec.num_agents, 1))
            action = policy(key_act, blank, blank, mask)
            keys = jax.random.split(key_step, num_envs)
            state, obs, mask, reward = step(keys, state, action)
            return (state, mask), obs.sum() + reward.sum()

        carry, totals = jax.lax.scan(one_step, carry, jax.random.split(key, num_steps))
        return carry, totals.sum()

    return jax.jit(init), jax.jit(run)


def compare(task: str, num_envs: int, num_steps: int, repeats: int) -> dict[str, Any]:
    """Returns steps per second of both sides, their ratio, and seconds of compilation."""
    env: Any = gw.make(task)
    sides = {
        "ours": our_loop(env, num_envs, num_steps),
        "suite": native_loop(env, NATIVE[TASKS[task].suite](env), num_envs, num_steps),
    }
    carries, compile_seconds = {}, {}
    for name, (init, run) in sides.items():
        carries[name] = jax.block_until_ready(init(jax.random.key(0)))
        began = time.perf_counter()
        compiled = run.lower(jax.random.key(0), carries[name]).compile()
        compile_seconds[name] = time.perf_counter() - began
        sides[name] = (init, compiled)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, (_, run) in sides.items():
            began = time.perf_counter()
            carries[name], _ = jax.block_until_ready(run(jax.random.key(repeat), carries[name]))
            if repeat:  # the first one warms up
                seconds[name].append(time.perf_counter() - began)
    speed = {name: num_envs * num_steps / statistics.median(times) for name, times in seconds.items()}
    return {
        "task": task,
        "envs": num_envs,
        "ours": round(speed["ours"]),
        "suite": round(speed["suite"]),
        "ratio": round(speed["ours"] / speed["suite"], 2),
        "compile_ours": round(compile_seconds["ours"], 1),
        "compile_suite": round(compile_seconds["suite"], 1),
    }


def main() -> None:
    """Prints a table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=[name for name, task in TASKS.items() if task.suite != "toy"])
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/envs.json"))
    options = parser.parse_args()
    rows = []
    for task in options.tasks:
        for num_envs in options.envs:
            rows.append(compare(task, num_envs, options.steps, options.repeats))
            print(json.dumps(rows[-1]), flush=True)
    settings = {"steps": options.steps, "repeats": options.repeats}
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps({"rows": rows, "settings": settings, "versions": versions()}, indent=2) + "\n")
    print(resets(rows))


if __name__ == "__main__":
    main()
