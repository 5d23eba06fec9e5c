"""What the tests of goals and of rewards share: whole battles of SMAX."""

import jax
import jax.numpy as jnp
import pytest

import goalward as gw

RIGHT, STOP, FIRST_ATTACK = 1, 4, 5


@pytest.fixture(scope="session")
def smax_3m():
    return gw.make("smax/3m", max_steps=40)


@pytest.fixture(scope="session")
def smax_battles(smax_3m):
    """States, `terminated` and `success` of battles that came to an end, [battle, time, ...] from the start on."""

    def attack_or_advance(mask):
        """Shoots at the first enemy in range, and else walks towards the enemy's side."""
        shoot = mask[:, FIRST_ATTACK:]
        walk = jnp.where(mask[:, RIGHT], RIGHT, STOP)
        return jnp.where(shoot.any(-1), FIRST_ATTACK + shoot.argmax(-1), walk).astype(jnp.int32)

    def fight(key):
        state, step = smax_3m.reset(key)

        def one_step(carry, key):
            state, mask = carry
            state, step = smax_3m.step(key, state, attack_or_advance(mask))
            return (state, step.action_mask), (state, step.terminated, step.success)

        _, history = jax.lax.scan(one_step, (state, step.action_mask), jax.random.split(key, 40))
        first = (state, step.terminated, step.success)
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, history)

    with jax.numpy_rank_promotion("allow"):
        states, terminated, success = jax.jit(jax.vmap(fight))(jax.random.split(jax.random.key(0), 96))
    ended = terminated.any(1)
    assert ended.sum() > 80
    return jax.tree.map(lambda x: x[ended], (states, terminated, success))
