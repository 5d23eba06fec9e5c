"""Our PPO and CSAC beside those of comparable libraries: the same environment, the same settings, one machine, one run.

    python benchmarks/peers.py --peers peers/bin/python [--against rejax brax jaxgcrl] [--seeds 5]

The peers live in an environment of their own, whose interpreter is named by --peers:

    python3 -m venv peers
    peers/bin/pip install jax==0.10.2 rejax==0.1.3 gymnax==0.0.9 brax==0.14.2 mujoco mujoco-mjx
    peers/bin/pip install tyro wandb wandb-osh colorlog matplotlib
    peers/bin/pip install --no-deps jaxgcrl==0.2.8

- rejax 0.1.3 reads five values from a step, gymnax 1.0 gives six: hence gymnax 0.0.9.
- Brax 0.14.2 trains with `jax.device_put_replicated`, which newer versions of JAX lack; it is put back here.
- jaxgcrl 0.2.8 pins an old JAX, so its dependencies are installed by hand; it also imports the former `brax.v1`, for
  which a stand-in is registered, wants `goal_indices` as NumPy and a folder for its checkpoints.

Every run is a process of its own, ours and the peer's in turn, the other way round for every second seed. PPO plays
Brax's inverted pendulum: the final score is the mean return of sampled episodes, over seeds, with a 95 % interval of
the difference of means. CSAC plays the ant for its speed alone, once the replay holds more than an episode of every
environment. Steps per second are without compilation and evaluation, with metrics, many iterations in one call; Brax
and jaxgcrl time themselves, and the second half of their run counts. Prints a table, writes results/peers.json.

Scale, networks, optimiser and coefficients are the same on all sides, and nobody clips gradients, since each clips in
another way. What stays different: rejax has a Gaussian without squashing and one spread for all states, takes the time
limit for a failure, and draws a reset at every step; Brax leaves out the advantage at the time limit, computes
advantages anew for every minibatch, and starts each environment from the same state again and again, as jaxgcrl does.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

# PPO on the pendulum; a minibatch is 512 steps on every side.
ENVS, ROLLOUT, MINIBATCHES, EPOCHS, ITERATIONS = 64, 128, 16, 4, 32
LEARNING_RATE, GAMMA, LAMBDA, CLIP, ENTROPY, WIDTHS = 3e-4, 0.99, 0.95, 0.2, 0.01, (64, 64)
EPISODE = 1000
SCORED_EPISODES = 128
# CSAC on the ant, the defaults of jaxgcrl but for the number of environments.
CRL_ENVS, CRL_UNROLL, CRL_BATCH, CRL_EPISODE, CRL_WIDTHS = 64, 62, 256, 1001, (256, 256)
CRL_UPDATES = CRL_ENVS * (CRL_EPISODE - 1) // CRL_BATCH  # what jaxgcrl draws after every unroll
CRL_PREFILLED = 17  # iterations, so that the replay holds a whole episode of every environment before the clock runs
CRL_TIMED = 4  # iterations
PERIODS = 4  # in which peers that time themselves divide a run
NO_CLIPPING = 1e9  # of gradients


def our_ppo(seed: int, value_clip: float | None = None) -> dict[str, float]:
    """Our PPO on the pendulum."""
    import goalward as gw
    from goalward.run.program import Program

    env = _pendulum()
    learner = gw.PPO(
        num_envs=ENVS,
        rollout_length=ROLLOUT,
        batch_size=ENVS * ROLLOUT // MINIBATCHES,
        num_epochs=EPOCHS,
        actor_lr=LEARNING_RATE,
        critic_lr=LEARNING_RATE,
        lr_schedule="constant",
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        clip=CLIP,
        value_clip=value_clip,
        entropy_coef=ENTROPY,
        max_grad_norm=NO_CLIPPING,
        adam_epsilon=1e-8,
        policy_last_scale=1.0,
        hidden_sizes=WIDTHS,
        use_layer_norm=False,
    ).bind(env, ITERATIONS)
    program = Program(learner, range(seed, seed + 1))
    state, speed = _timed(program.advance, program.init(), 1, ITERATIONS - 1, ENVS * ROLLOUT)
    results = program.evaluate_fresh(state.params, SCORED_EPISODES, greedy=False)
    return {"score": float(results.ret[0]), "steps_per_second": speed}


def _pendulum() -> Any:
    """Returns Brax's inverted pendulum as one of our environments; it has a reward and no goal to speak of."""
    import jax.numpy as jnp
    from brax import envs

    import goalward as gw

    class Pendulum(gw.GoalEnv):
        suite = envs.get_environment("inverted_pendulum", backend="generalized")
        spec = gw.EnvSpec(
            name="inverted_pendulum", obs_dim=4, goal_dim=1, action_space=gw.Box((-1.0,), (1.0,)), max_steps=EPISODE
        )

        def reset(self, key: Any) -> Any:
            return self.look(self.suite.reset(key))

        def step(self, key: Any, state: Any, action: Any) -> Any:
            return self.look(self.suite.step(state, action[0]))

        def look(self, state: Any) -> Any:
            state = state.replace(reward=jnp.float32(state.reward))  # the suite's is a Python number after a step
            nothing = jnp.zeros((1, 1))
            fallen = state.done > 0
            return state, gw.TimeStep(
                obs=state.obs[None],
                achieved=nothing,
                goal=nothing,
                terminated=fallen,
                success=~fallen,
                reward=state.reward[None],
            )

    return Pendulum()


def rejax_ppo(seed: int) -> dict[str, float]:
    """PPO of rejax on the pendulum."""
    import jax
    from rejax import PPO

    algo = PPO.create(
        env="brax/inverted_pendulum",
        agent_kwargs={"activation": "swish", "hidden_layer_sizes": WIDTHS},
        num_envs=ENVS,
        num_steps=ROLLOUT,
        num_minibatches=MINIBATCHES,
        num_epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
        max_grad_norm=math.inf,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        clip_eps=CLIP,
        ent_coef=ENTROPY,
        total_timesteps=ITERATIONS * ENVS * ROLLOUT,
        eval_freq=ITERATIONS * ENVS * ROLLOUT,
    )
    state = jax.jit(algo.init_state)(jax.random.PRNGKey(seed))

    def advance(state: Any, count: int) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, state: algo.train_iteration(state), state), ()

    state, speed = _timed(jax.jit(advance, donate_argnums=0), state, 1, ITERATIONS - 1, ENVS * ROLLOUT)
    _, returns = jax.jit(algo.eval_callback)(algo, state, jax.random.PRNGKey(seed + 1000))
    return {"score": float(returns.mean()), "steps_per_second": speed}


def brax_ppo(seed: int) -> dict[str, float]:
    """PPO of Brax on the pendulum."""
    _put_back_replication()
    from brax import envs
    from brax.training.agents.ppo import networks, train

    speeds: list[float] = []
    scores: list[float] = []

    def progress(steps: int, metrics: Any) -> None:
        if "training/sps" in metrics:
            speeds.append(float(metrics["training/sps"]))
        scores.append(float(metrics["eval/episode_reward"]))

    train.train(
        environment=envs.get_environment("inverted_pendulum", backend="generalized"),
        num_timesteps=ITERATIONS * ENVS * ROLLOUT,
        episode_length=EPISODE,
        num_envs=ENVS,
        unroll_length=ROLLOUT,
        batch_size=ENVS // MINIBATCHES,
        num_minibatches=MINIBATCHES,
        num_updates_per_batch=EPOCHS,
        learning_rate=LEARNING_RATE,
        max_grad_norm=None,
        discounting=GAMMA,
        gae_lambda=LAMBDA,
        clipping_epsilon=CLIP,
        entropy_cost=ENTROPY,
        normalize_observations=False,
        network_factory=functools.partial(
            networks.make_ppo_networks, policy_hidden_layer_sizes=WIDTHS, value_hidden_layer_sizes=WIDTHS
        ),
        num_evals=1 + PERIODS,
        num_eval_envs=SCORED_EPISODES,
        deterministic_eval=False,
        seed=seed,
        progress_fn=progress,
    )
    return {"score": scores[-1], "steps_per_second": _steady(speeds)}


def our_csac(seed: int) -> dict[str, float]:
    """Our CSAC on the ant."""
    import goalward as gw
    from goalward.run.program import Program

    env = gw.make("jaxgcrl/ant", max_steps=CRL_EPISODE)
    steps = CRL_ENVS * CRL_UNROLL
    learner = gw.CSAC(
        num_envs=CRL_ENVS,
        rollout_length=CRL_UNROLL,
        batch_size=CRL_BATCH,
        replay_size=CRL_UNROLL * (10_000 // CRL_UNROLL),
        replay_ratio=CRL_UPDATES * CRL_BATCH / steps,
        actor_lr=3e-4,
        critic_lr=3e-4,
        alpha_lr=3e-4,
        lr_schedule="constant",
        max_grad_norm=NO_CLIPPING,
        adam_epsilon=1e-8,
        hidden_sizes=CRL_WIDTHS,
        use_layer_norm=False,
        initial_log_std=-1.5,
        max_log_std=2.0,
    ).bind(env, 100)
    assert learner.num_updates == CRL_UPDATES
    program = Program(learner, range(seed, seed + 1))
    _, speed = _timed(program.advance, program.init(), CRL_PREFILLED, CRL_TIMED, steps)
    return {"steps_per_second": speed}


def jaxgcrl_crl(seed: int) -> dict[str, float]:
    """CRL of jaxgcrl on the ant."""
    import numpy as np

    _stand_in_for_brax_v1()
    from jaxgcrl.agents.crl.crl import CRL
    from jaxgcrl.envs.ant import Ant

    def ant() -> Any:
        env = Ant(backend="spring")
        env.goal_indices = np.asarray(env.goal_indices)
        return env

    speeds: list[float] = []
    prefill = 1000 * CRL_ENVS
    with tempfile.TemporaryDirectory() as folder:
        config = types.SimpleNamespace(
            num_envs=CRL_ENVS,
            episode_length=CRL_EPISODE,
            action_repeat=1,
            total_env_steps=prefill + PERIODS * CRL_TIMED * CRL_ENVS * CRL_UNROLL,
            num_evals=PERIODS,
            num_eval_envs=CRL_ENVS,
            seed=seed,
            visualization_interval=1000,
            checkpoint_logdir=folder,
        )
        agent = CRL(batch_size=CRL_BATCH, unroll_length=CRL_UNROLL, h_dim=CRL_WIDTHS[0], n_hidden=len(CRL_WIDTHS))
        agent.train_fn(
            config=config,
            train_env=ant(),
            eval_env=ant(),
            progress_fn=lambda steps, metrics, *rest, **options: speeds.append(float(metrics["training/sps"])),
        )
    return {"steps_per_second": _steady(speeds)}


def _timed(
    advance: Callable[[Any, int], tuple[Any, Any]], state: Any, before: int, count: int, steps: int
) -> tuple[Any, float]:
    """Returns the state after `before + count` iterations, and environment steps per second of the last `count`."""
    import jax

    state, _ = jax.block_until_ready(advance(state, before))
    began = time.perf_counter()
    state, _ = jax.block_until_ready(advance(state, count))
    return state, count * steps / (time.perf_counter() - began)


def _steady(speeds: list[float]) -> float:
    """Returns the mean speed of the second half of the periods between evaluations.

    The first period compiles, and in Brax the second does so again, for arrays that lie elsewhere by then.
    """
    print("steps/s by period:", *(f"{speed:.0f}" for speed in speeds), file=sys.stderr)
    return statistics.mean(speeds[len(speeds) // 2 :])


def _put_back_replication() -> None:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    def device_put_replicated(tree: Any, devices: Any) -> Any:
        sharding = NamedSharding(Mesh(np.array(devices), ("device",)), PartitionSpec("device"))
        return jax.tree.map(lambda x: jax.device_put(np.stack([x] * len(devices)), sharding), tree)

    if not hasattr(jax, "device_put_replicated"):
        jax.device_put_replicated = device_put_replicated


def _stand_in_for_brax_v1() -> None:
    from brax import envs

    module, former = types.ModuleType("brax.v1"), types.ModuleType("brax.v1.envs")
    for name in ("Env", "State", "Wrapper"):
        setattr(former, name, getattr(envs, name))
    module.envs = former  # type: ignore[attr-defined]
    sys.modules |= {"brax.v1": module, "brax.v1.envs": former}


SIDES: dict[str, Callable[[int], dict[str, float]]] = {
    "our_ppo": our_ppo,
    "our_clipped_ppo": functools.partial(our_ppo, value_clip=CLIP),  # rejax clips values as it clips ratios
    "rejax_ppo": rejax_ppo,
    "brax_ppo": brax_ppo,
    "our_csac": our_csac,
    "jaxgcrl_crl": jaxgcrl_crl,
}
PAIRS = {
    "rejax": ("our_clipped_ppo", "rejax_ppo"),
    "brax": ("our_ppo", "brax_ppo"),
    "jaxgcrl": ("our_csac", "jaxgcrl_crl"),
}


def run_side(python: str, side: str, seed: int) -> dict[str, Any]:
    """Returns what one side measured, in a process of its own."""
    answer = subprocess.run(
        [python, __file__, "--side", side, "--seed", str(seed)], capture_output=True, text=True, check=False
    )
    if answer.returncode:
        raise SystemExit(f"{side} failed:\n{answer.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    print(side, seed, result, file=sys.stderr, flush=True)
    return result


def packages() -> dict[str, str]:
    """Returns the versions of what is installed here of the libraries that are compared."""
    found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return {name: found[name] for name in ("jax", "jaxlib", "goalward", "rejax", "brax", "jaxgcrl") if name in found}


def main() -> None:
    """Runs one side, or compares them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--peers", help="the interpreter of the peers' environment")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("results/peers.json"))
    options = parser.parse_args()
    if options.side:
        print(json.dumps(SIDES[options.side](options.seed) | {"packages": packages()}))
        return
    if options.seeds < 2:
        parser.error("--seeds must be at least 2, for an interval")
    if not options.peers:
        parser.error("--peers must name the interpreter of the peers' environment")

    from goalward.run.directory import versions

    rows = []
    for pair in options.against:
        ours, theirs = PAIRS[pair]
        sides = [("ours", sys.executable, ours), ("theirs", options.peers, theirs)]
        row: dict[str, Any] = {"pair": pair, "ours": [], "theirs": []}
        for seed in range(options.seeds):
            for whose, python, side in sides if seed % 2 == 0 else reversed(sides):
                result = run_side(python, side, seed)
                row[f"packages of {whose}"] = result.pop("packages")
                row[whose].append(result)
        rows.append(row)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"rows": rows, "versions": versions()}, indent=2) + "\n")

    from tables import peers

    print(peers(rows))


if __name__ == "__main__":
    main()
