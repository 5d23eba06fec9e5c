"""What a finished run gives: policies that act, win rates, pictures; and who may load it."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_runs import SETTINGS, records_of
from PIL import Image

import goalward as gw
from goalward.run.load import evaluate_run


@pytest.fixture(scope="module")
def policy(finished):
    return gw.load(finished.path)


@pytest.fixture(scope="module")
def first_step():
    env = gw.make("toy/rooms")
    _, step = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 64))
    return step


def test_a_loaded_policy_is_the_trained_one(finished, policy, first_step):
    trained = finished.policies[0]

    assert policy.seed == trained.seed == 0
    assert policy.spec == gw.make("toy/rooms").spec
    np.testing.assert_array_equal(
        policy.act(first_step.obs, first_step.goal), trained.act(first_step.obs, first_step.goal)
    )


def test_any_seed_of_the_run_can_be_loaded_and_no_other(finished):
    assert gw.load(finished.path, seed=4).seed == 4
    with pytest.raises(gw.UserError, match=r"one of the run's seeds \[0, 1, 2, 3, 4, 5, 6, 7\]; found 8"):
        gw.load(finished.path, seed=8)


def test_greedy_actions_are_always_the_same_and_sampled_ones_are_not(policy, first_step):
    obs, goal, mask = first_step.obs, first_step.goal, first_step.action_mask
    greedy = [policy.act(obs, goal, mask) for _ in range(2)]
    sampled = [policy.act(obs, goal, mask, jax.random.key(i)) for i in (0, 0, 1)]

    np.testing.assert_array_equal(greedy[0], greedy[1])
    np.testing.assert_array_equal(sampled[0], sampled[1])
    assert (sampled[0] != sampled[2]).any()
    for action in (*greedy, *sampled):
        assert action.shape == (64, 1)
        assert action.dtype == jnp.int32


def test_masked_actions_are_never_taken(policy, first_step):
    obs, goal, mask = first_step.obs, first_step.goal, first_step.action_mask
    one_left = jnp.zeros_like(mask).at[..., 2].set(True)

    assert (policy.act(obs, goal, one_left) == 2).all()
    assert (policy.act(obs, goal, one_left, jax.random.key(0)) == 2).all()
    sampled = policy.act(obs, goal, mask, jax.random.key(1))
    assert jnp.take_along_axis(mask, sampled[..., None], axis=-1).all()


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_a_policy_acts_on_any_batch_shape(policy, first_step, batch):
    obs = jnp.broadcast_to(first_step.obs[0], (*batch, *first_step.obs[0].shape))
    goal = jnp.broadcast_to(first_step.goal[0], (*batch, *first_step.goal[0].shape))

    assert policy.act(obs, goal).shape == (*batch, 1)
    assert policy.act(obs, goal, key=jax.random.key(0)).shape == (*batch, 1)


@pytest.mark.parametrize("seed", [True, "0", 1.0])
def test_what_is_no_seed_is_refused(finished, seed):
    with pytest.raises(gw.UserError, match="Expected one of the run's seeds"):
        gw.load(finished.path, seed=seed)


@pytest.mark.parametrize("episodes", [2.5, "x", True])
def test_episodes_are_whole_numbers(finished, episodes):
    with pytest.raises(gw.UserError, match="episodes must be a whole number of at least 1"):
        evaluate_run(finished.path, episodes=episodes)


def test_evaluate_prints_one_json_document(finished, goalward):
    code, out, err = goalward("evaluate", finished.path, "--json", "--episodes", "8")
    result = json.loads(out)

    assert (code, err) == (0, "")
    assert result["episodes"] == 8
    assert len(result["win_rate_per_seed"]) == 8
    assert all(0 <= rate <= 1 and (rate * 8).is_integer() for rate in result["win_rate_per_seed"])
    assert result["win_rate"] == pytest.approx(np.mean(result["win_rate_per_seed"]))
    assert result["greedy"] is False
    assert result["seeds"] == list(range(8))
    assert result["step"] == SETTINGS["steps"]


def test_evaluate_says_what_it_measured(finished, goalward):
    code, out, _ = goalward("evaluate", finished.path, "--greedy")

    assert code == 0
    assert out.startswith("toy/rooms with cppo after 4,480 steps, greedy actions, 8 episodes per seed: win rate 0.")


def test_evaluate_leaves_the_run_as_it_is(finished, goalward):
    before = {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")}
    goalward("evaluate", finished.path, "--json")

    assert {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")} == before


def test_render_writes_an_animation(finished, goalward, tmp_path):
    path = tmp_path / "new" / "film.gif"
    code, out, err = goalward("render", finished.path, "--out", path, "--episodes", "2")

    assert (code, out, err) == (0, f"{path}\n", "")
    with Image.open(path) as film:
        assert film.format == "GIF"
        assert film.n_frames > 6
        assert film.width > 1.9 * film.height  # two episodes side by side


def test_a_mistake_in_render_is_explained(finished, goalward, tmp_path, monkeypatch):
    monkeypatch.setattr("goalward.envs.toy.rooms.Rooms.render", lambda *_: 1 / 0)
    code, out, err = goalward("render", finished.path, "--out", tmp_path / "film.gif", "--episodes", "1")

    assert (code, out) == (2, "")
    assert err == "goalward: The picture could not be made; ZeroDivisionError: division by zero.\n"


def test_render_writes_into_the_run_unless_told_otherwise(copy_of_finished, goalward):
    assert goalward("render", copy_of_finished, "--episodes", "1")[0] == 0
    assert (copy_of_finished / "media" / "render.gif").is_file()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["evaluate", "RUN", "--episodes", "0"], ["episodes", "0"]),
        (["evaluate", "RUN", "--episodes", "1e12"], ["An evaluation would keep", "fewer episodes (--episodes"]),
        (["render", "RUN", "--episodes", "1000000000000"], ["The film would keep", "fewer episodes"]),
        (["train", "--out", ""], ["--out", "path"]),
        (["evaluate", "RUN", "--env", "mymodule:factory"], ["toy/rooms", "mymodule:factory"]),
        (["render", "RUN", "--out", "/proc/film.gif", "--episodes", "1"], ["/proc/film.gif", "writable"]),
        (["render", "RUN", "--key", "99999999999999999999"], ["key"]),
        (["train", "toy/maze", "--resume", "RUN"], ["toy/rooms", "toy/maze"]),
        (["train", "--out", "RUN"], ["in use", "--resume"]),
        (["train", "--resume", "RUN", "--seeds", "3"], ["--seeds"]),
    ],
)
def test_mistakes_with_a_finished_run_are_explained(finished, goalward, arguments, parts):
    before = sorted(finished.path.rglob("*"))
    code, out, err = goalward(*(finished.path if word == "RUN" else word for word in arguments))

    assert (code, out) == (2, "")
    assert err.startswith("goalward: ")
    assert err.count("\n") == 1
    assert [part for part in parts if part not in err] == []
    assert sorted(finished.path.rglob("*")) == before


def test_a_run_whose_networks_were_changed_is_refused(copy_of_finished, environment):
    config = copy_of_finished / "config.toml"
    config.write_text(config.read_text().replace("repr_dim = 64", "repr_dim = 32"))
    command = [sys.executable, "-m", "goalward", "evaluate", str(copy_of_finished)]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    assert answer.returncode == 2
    assert "does not fit the networks" in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.fixture
def stranger(own_environment, monkeypatch):
    """The run as a stranger finds it: its module can be imported but has not been."""
    folder, run = own_environment
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "own_rooms_module", raising=False)
    (folder / "own_rooms_module.imported").unlink(missing_ok=True)
    return folder, run


def was_imported(folder):
    return (folder / "own_rooms_module.imported").exists()


def test_an_own_environment_is_stored_as_text(own_environment):
    _, run = own_environment
    assert 'task = "own_rooms_module:rooms"' in (run.path / "config.toml").read_text()


@pytest.mark.parametrize(
    "arguments",
    [["evaluate", "RUN"], ["render", "RUN"], ["train", "--resume", "RUN"], ["evaluate", "RUN", "--env", "json:loads"]],
)
def test_the_command_line_does_not_import_what_a_run_names(stranger, goalward, arguments):
    folder, run = stranger
    code, out, err = goalward(*(run.path if word == "RUN" else word for word in arguments))

    assert (code, out) == (2, "")
    assert "own_rooms_module:rooms" in err
    assert err.count("\n") == 1
    assert not was_imported(folder)


def test_loading_in_python_does_not_import_what_a_run_names(stranger):
    folder, run = stranger
    with pytest.raises(gw.UserError, match=r"not loaded unasked; give its name again: own_rooms_module:rooms"):
        gw.load(run.path)
    with pytest.raises(gw.UserError, match="not loaded unasked"):
        gw.resume(run.path)

    assert not was_imported(folder)


def test_an_own_environment_given_again_is_made_as_in_training(stranger, goalward):
    folder, run = stranger
    code, out, err = goalward("evaluate", run.path, "--env", "own_rooms_module:rooms", "--json")

    assert (code, err) == (0, "")
    assert json.loads(out)["task"] == "own_rooms_module:rooms"
    assert was_imported(folder)


def test_a_finished_run_on_an_own_environment_stays_as_it_is_when_resumed(stranger, goalward):
    _, run = stranger
    records = records_of(run.path)

    assert goalward("train", "own_rooms_module:rooms", "--resume", run.path)[0] == 0
    assert records_of(run.path) == records


def test_an_own_environment_may_be_given_as_an_object(own_environment):
    _, run = own_environment
    policy = gw.load(run.path, env=gw.make("toy/rooms"))

    assert policy.act(jnp.zeros((1, 18)), jnp.zeros((1, 2))).shape == (1,)
