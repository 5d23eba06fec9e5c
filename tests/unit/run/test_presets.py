"""Presets: those that are shipped, a file of one's own, and the settings of an earlier run."""

import functools
from pathlib import Path

import pytest

import goalward as gw
from goalward.algos.base import ALGORITHMS
from goalward.envs.tasks import TASKS
from goalward.run.config import Plan, load_preset, make_plan, preset_names


@functools.cache
def environment(task):
    if not TASKS[task].is_installed:
        pytest.skip(f"needs {TASKS[task].package}")
    return gw.make(task)


def quick(**settings):
    return make_plan(task="toy/maze", preset="quick", settings=settings)


@pytest.fixture
def preset(tmp_path):
    """Returns a function that writes a preset file and returns its path."""

    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return write


def test_a_task_starts_from_its_own_preset_if_it_has_one():
    assert make_plan(task="toy/rooms").run.preset == "tuned"
    assert make_plan(task="toy/rooms").algo.num_envs == 64
    assert make_plan(task="mymodule:factory").run.preset == "default"
    assert make_plan(task="mymodule:factory").algo == gw.CPPO()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", [*preset_names(), None])
def test_every_preset_suits_every_task_and_method(task, name):
    env = environment(task)
    fitting = [algo for algo, method in ALGORITHMS.items() if method.fits(env.spec)]
    for algo in fitting if name != "paper-literal" else ["cppo"]:
        plan = make_plan(task=task, algo=algo, preset=name).for_env(env)

        assert plan.total_steps >= plan.run.steps
        assert plan.run.goal == next(iter(TASKS[task].goals))
        assert Plan.from_toml(plan.to_toml()) == plan
    assert len(fitting) >= 3


@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if task.suite != "toy"])
def test_a_suite_has_published_settings_for_its_baselines(task):
    spec = environment(task).spec
    for algo, method in ALGORITHMS.items():
        of_the_paper = method.teams == (spec.num_agents > 1) or algo in ("ppo", "csac")
        if algo != "cppo" and method.fits(spec) and of_the_paper:
            assert make_plan(task=task, algo=algo).run.preset == "published"
    assert make_plan(task=task).run.preset == "default"


def test_the_presets_are_the_documented_ones():
    assert preset_names() == ["default", "paper-literal", "quick"]
    plan = quick()
    found = (plan.algo.num_envs, plan.algo.rollout_length, plan.algo.batch_size, plan.algo.hidden_sizes)
    assert found == (16, 32, 64, (64, 64))
    assert (plan.run.eval_episodes, plan.run.absolute_factor) == (16, 0)


def test_a_toml_file_serves_as_a_preset(preset):
    path = preset(
        """
        [run]
        seeds = 3
        steps = 64
        [env]
        max_steps = 9
        [cppo]
        num_envs = 2
        rollout_length = 32
        batch_size = 64
        """
    )
    plan = make_plan(task="toy/maze", preset=path)

    assert plan.run.preset == path
    assert (plan.run.seeds, plan.run.steps, plan.run.env) == (3, 64, {"max_steps": 9})
    assert (plan.algo.num_envs, plan.algo.batch_size) == (2, 64)


def test_a_preset_may_be_a_path(preset):
    path = preset("[run]\nseeds = 3\n")

    assert make_plan(task="toy/maze", preset=Path(path)) == make_plan(task="toy/maze", preset=path)
    with pytest.raises(gw.UserError, match=r"Expected preset to be a name or a \.toml file; found 3\."):
        make_plan(task="toy/maze", preset=3)


def test_the_settings_of_a_run_serve_as_a_preset_for_another_task(preset):
    first = quick(seeds=3, clip=0.11).for_env(gw.make("toy/maze"))
    second = make_plan(task="toy/rooms", preset=preset(first.to_toml()))

    assert second.run.task == "toy/rooms"
    assert second.run.seeds == 3
    assert second.algo == first.algo


def test_the_goal_of_a_run_is_kept_for_its_own_task_and_dropped_for_another(preset):
    path = preset(quick().for_env(gw.make("toy/swarm", goal="distance", reward="sparse")).to_toml())

    same, other = make_plan(task="toy/maze", preset=path), make_plan(task="toy/rooms", preset=path)
    assert (same.run.goal, same.run.reward) == ("distance", "sparse")
    assert (other.run.goal, other.run.reward) == (None, None)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[run]\nseed = 3\n", ["seed", "seeds"]),
        ("[cppo]\nclips = 0.1\n", ["clips", "clip"]),
        ("[pppo]\nclip = 0.1\n", ["pppo", "cppo"]),
        ("[run]\nseeds = 'three'\n", ["seeds must be a whole number", "'three'"]),
        ("[run\n", ["mine.toml", "not valid TOML"]),
        ("run = 3\n", ["mine.toml", "run", "table"]),
        ("cppo = 'x'\n", ["mine.toml", "cppo", "table"]),
        ("[run.env]\nsize = 9\n", ["env"]),
    ],
)
def test_mistakes_in_a_preset_file_are_explained(preset, text, parts):
    with pytest.raises(gw.UserError) as caught:
        make_plan(task="toy/maze", preset=preset(text))

    assert [part for part in parts if part not in str(caught.value)] == []


def test_a_preset_file_that_is_no_text_is_explained(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(gw.UserError, match=r"binary\.toml.*not valid TOML"):
        load_preset(str(path), "toy/maze", "cppo")


def test_a_preset_of_other_methods_is_refused(preset):
    with pytest.raises(gw.UserError, match=r"'paper-literal' has settings of cppo, and none of ppo; use another\."):
        make_plan(task="toy/maze", algo="ppo", preset="paper-literal")
    with pytest.raises(gw.UserError, match=r"'published' has settings of ppo, icsac, and none of cppo"):
        make_plan(task="smax/3m", preset="published")
    assert make_plan(task="toy/maze", algo="ppo", preset=preset("[run]\nsteps = 100_000")).run.steps == 100_000


def test_unknown_presets_offer_the_known_ones():
    with pytest.raises(gw.UserError, match=r"Unknown preset 'quik'\. Did you mean quick"):
        load_preset("quik", "toy/maze", "cppo")
    with pytest.raises(gw.UserError, match=r"'none\.toml' to be a TOML file; there is none"):
        load_preset("none.toml", "toy/maze", "cppo")
    with pytest.raises(gw.UserError, match="'mymodule:factory' has no tuned preset"):
        load_preset("tuned", "mymodule:factory", "cppo")
