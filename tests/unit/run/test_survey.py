"""What a policy thinks on every cell of a grid: the agent is really put there, and the numbers are the policy's."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.run.media import save_survey
from goalward.run.policy import Policy


def test_rooms_are_seen_from_every_cell():
    env = gw.make("toy/rooms")
    state, step = env.reset(jax.random.key(3))
    survey = env.survey(jax.random.key(3))

    assert survey.step.obs.shape == (1, 9, 9, 1, 18)
    np.testing.assert_array_equal(survey.is_free, ~env.walls)
    np.testing.assert_array_equal(survey.target, state.target[0])
    row, column = state.position[0]
    here = jax.tree.map(lambda x: x[0, row, column], survey.step)
    jax.tree.map(np.testing.assert_array_equal, here, step)
    # One move down is what is seen from the cell below.
    down = int(np.argmax(np.asarray(step.action_mask[0])))
    moved, after = env.step(jax.random.key(0), state, jnp.array([down]))
    row, column = moved.position[0]
    np.testing.assert_array_equal(survey.step.obs[0, row, column], after.obs)
    np.testing.assert_array_equal(survey.step.action_mask[0, row, column], after.action_mask)


@pytest.mark.parametrize("name", ["navix/fourrooms", "navix/doorkey-random-16x16"])
@pytest.mark.usefixtures("suite_arithmetic")
def test_navix_is_seen_from_every_cell_and_every_way(name):
    pytest.importorskip("navix")
    env = gw.make(name)
    state, step = env.reset(jax.random.key(3))
    survey = jax.jit(env.survey)(jax.random.key(3))
    height, width = env.grid_shape
    (row, column), (heading,) = state.entities["player"].position[0], state.entities["player"].direction

    assert survey.step.obs.shape == (4, height, width, 1, env.spec.obs_dim)
    np.testing.assert_allclose(survey.step.obs[heading, row, column], step.obs)
    _, turned = env.step(jax.random.key(0), state, jnp.array([1]))
    np.testing.assert_allclose(survey.step.obs[(heading + 1) % 4, row, column], turned.obs)
    np.testing.assert_array_equal(survey.target, state.entities["goal"].position[0])
    assert bool(survey.is_free[row, column])
    assert not bool(survey.is_free[0].any())
    assert len(env.survey_names.actions) == env.spec.action_space.num_actions


def test_the_file_holds_the_policys_numbers(tmp_path):
    env = gw.make("toy/rooms", size=5)
    learner = gw.CPPO(num_envs=4, rollout_length=4, batch_size=4, hidden_sizes=(8,)).bind(env, 1)
    policy = Policy(learner, learner.init(jax.random.key(0)).params, 0)
    save_survey(tmp_path / "media" / "survey.json", env, policy, jax.random.key(7))
    written = json.loads((tmp_path / "media" / "survey.json").read_text())
    step = env.survey(jax.random.key(7)).step

    np.testing.assert_allclose(written["value"], policy.value(step.obs, step.goal, step.action_mask)[..., 0], rtol=1e-5)
    np.testing.assert_array_equal(written["action"], policy.act(step.obs, step.goal, step.action_mask)[..., 0])
    assert written["actions"] == ["up", "down", "left", "right"]
    assert written["facings"] == [""]
    assert np.array(written["is_free"]).shape == (5, 5)
