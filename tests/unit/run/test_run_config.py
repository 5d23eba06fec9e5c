"""Where settings come from, how they are checked, and how they are saved."""

import dataclasses
import errno
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

import goalward as gw
from goalward.run.config import PYTHON_OBJECT, Plan, RunConfig, make_plan, parse_setting


def plan_of(**settings):
    return make_plan(task="toy/maze", preset="quick", settings=settings)


def complaint(**settings):
    with pytest.raises(gw.UserError) as caught:
        plan_of(**settings)
    return str(caught.value)


def test_a_preset_wins_over_the_defaults_and_a_setting_over_the_preset():
    default, quick = gw.CPPO(), plan_of()
    changed = plan_of(num_envs=32, seeds=5)

    assert default.num_envs == 512
    assert quick.algo.num_envs == 16
    assert changed.algo.num_envs == 32
    assert (quick.run.seeds, changed.run.seeds) == (2, 5)
    assert changed.algo.rollout_length == quick.algo.rollout_length == 32  # the rest stays
    assert changed.algo.gamma == default.gamma


@pytest.mark.parametrize("settings", [["clip=0.1"], "clip=0.1", 3, [], {3: 1}])
def test_settings_that_are_no_dictionary_are_refused(settings):
    with pytest.raises(gw.UserError, match="Expected settings to be a dictionary"):
        make_plan(task="toy/maze", preset="quick", settings=settings)


def test_numbers_of_numpy_are_numbers():
    plan = plan_of(**{"env.max_steps": np.int64(7), "seeds": np.int32(3), "clip": np.float64(0.25)})

    assert (plan.run.env, plan.run.seeds, plan.algo.clip) == ({"max_steps": 7}, 3, 0.25)
    assert Plan.from_toml(plan.to_toml()) == plan


def test_an_argument_wins_over_the_preset_and_none_does_not():
    plan = make_plan(task="toy/maze", preset="quick", run={"seeds": 7, "first_seed": 3, "steps": None})

    assert (plan.run.seeds, plan.run.first_seed) == (7, 3)
    assert plan.run.steps == 5120


def test_an_algorithm_given_as_an_object_is_taken_as_it_is():
    mine = gw.CPPO(num_envs=8, rollout_length=4, batch_size=16, clip=0.3)
    plan = make_plan(task="toy/maze", algo=mine, preset="quick")

    assert plan.algo == mine
    assert plan.run.seeds == 2  # the preset still decides about the run


def test_a_plan_survives_toml():
    plan = plan_of(**{"clip": 0.1, "hidden_sizes": [8, 4], "env.max_steps": 7, "critic_lr": 1 / 3, "entropy_coef": 0.0})
    assert plan.algo.critic_lr == 1 / 3
    assert Plan.from_toml(plan.to_toml()) == plan
    assert tomllib.loads(plan.to_toml())["env"] == {"max_steps": 7}


def test_everything_the_environment_decides_is_written_down():
    written = tomllib.loads(plan_of().for_env(gw.make("toy/maze")).to_toml())

    assert written["run"]["goal"] == "position"
    assert written["run"]["reward"] == "dense"
    assert written["cppo"]["entropy_coef"] == 0.001  # continuous
    assert tomllib.loads(plan_of().for_env(gw.make("toy/rooms")).to_toml())["cppo"]["entropy_coef"] == 0.01


def test_steps_are_rounded_up_to_whole_iterations():
    plan = make_plan(task="toy/maze", preset="default", run={"steps": 80_000_000})  # 512 x 128 steps each

    assert plan.num_iterations == 1221
    assert plan.total_steps == 1221 * 512 * 128
    assert plan_of(steps=512).num_iterations == 1
    assert plan_of(steps=513).num_iterations == 2


def test_fewer_steps_than_one_iteration_are_refused():
    assert complaint(steps=511) == "steps must cover at least one iteration, which is 512 environment steps; found 511."


def test_more_iterations_than_can_be_counted_are_refused():
    # The optimisers count 2^31 - 1 gradient steps, and an iteration of 512 steps in batches of 64 takes 8 of them.
    most = (2**31 - 1) // 8 * 512

    assert plan_of(steps=most).total_steps == most
    assert complaint(steps=most + 1).startswith(f"steps must be at most {most:,}, since")
    assert complaint(steps=most, num_epochs=2).startswith("steps must be at most")
    assert complaint(steps=10**30).startswith("steps must be at most")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("critic_rate", "critic_lr"),
        ("hidden_size", "hidden_sizes"),
        ("seed", "seeds"),
        ("eval_episode", "eval_episodes"),
    ],
)
def test_an_unknown_setting_offers_the_nearest_names(key, nearest):
    message = complaint(**{key: 1})

    assert f"'{key}'" in message
    assert nearest in message


@pytest.mark.parametrize("key", ["name", "env", "own_modules"])
def test_what_no_file_can_set_is_no_setting(key):
    assert complaint(**{key: "toy/rooms"}).startswith(f"Unknown setting '{key}'.")


def test_networks_can_be_passed_in_python_only():
    assert complaint(networks="mine") == (
        "networks are Flax modules; pass them in Python, as algo=goalward.CPPO(networks=...)."
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip": "small"}, "clip must be a number; found 'small'."),
        ({"clip": True}, "clip must be a number; found True."),
        ({"num_envs": 2.5}, "num_envs must be a whole number; found 2.5."),
        ({"num_envs": "4"}, "num_envs must be a whole number; found '4'."),
        ({"norm_adv": 1}, "norm_adv must be true or false; found 1."),
        ({"activation": 3}, "activation must be a word; found 3."),
        ({"hidden_sizes": 64}, "hidden_sizes must be a list of whole numbers such as [64, 64]; found 64."),
        ({"hidden_sizes": [64.0]}, "hidden_sizes must be a list of whole numbers such as [64, 64]; found [64.0]."),
        ({"hidden_sizes": [64, 0]}, "hidden_sizes must all be at least 1 and below 2^31; found (64, 0)."),
        ({"seeds": 0}, "seeds must be at least 1; found 0."),
        ({"first_seed": -1}, "first_seed must be at least 0; found -1."),
        ({"eval_episodes": 0}, "eval_episodes must be at least 1; found 0."),
        ({"num_envs": 0}, "num_envs must be at least 1; found 0."),
        ({"num_envs": 10**9, "rollout_length": 1}, "num_envs must be at most 214748364; found 1000000000."),
        ({"batch_size": 1}, "batch_size must be at least 2; found 1."),
        ({"clip": 0.0}, "clip must be between 0 and 1, both excluded; found 0.0."),
        ({"clip": 1}, "clip must be between 0 and 1, both excluded; found 1.0."),
        ({"gamma": 1.5}, "gamma must be between 0 and 1, both excluded; found 1.5."),
        ({"actor_lr": 0}, "actor_lr must be above 0; found 0.0."),
        ({"entropy_coef": -0.1}, "entropy_coef must be at least 0; found -0.1."),
        ({"first_seed": 2**32}, "first_seed + seeds must not exceed 2^32; found 4294967296 + 2."),
        (
            {"initial_log_std": 2.0},
            "initial_log_std must lie between min_log_std -5.0 and max_log_std 1.0, at least 0.001 from both; "
            "found 2.0.",
        ),
        (
            {"positives": "shuffled", "num_envs": 1, "batch_size": 32},
            "num_envs must be at least 2 for shuffled positives; found 1.",
        ),
    ],
)
def test_values_of_the_wrong_type_or_range_are_refused(settings, words):
    assert complaint(**settings) == words


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["clip", "critic_lr", "entropy_coef", "min_log_std"])
def test_values_that_are_not_finite_are_refused(key, value):
    assert complaint(**{key: value}) == f"{key} must be a finite number; found {value}."


def test_whole_numbers_may_be_written_as_floats_but_must_be_finite():
    assert plan_of(steps=1e4).run.steps == 10_000
    assert type(plan_of(steps=1e4).run.steps) is int
    assert complaint(steps=math.inf) == "steps must be a whole number; found inf."


def test_a_word_outside_the_choices_offers_the_nearest():
    assert complaint(energy="cosin") == "Unknown value for energy: 'cosin'. Did you mean cosine?"


@pytest.mark.parametrize(
    ("num_envs", "rollout_length", "batch_size", "nearest"),
    [(4, 8, 15, 16), (4, 8, 9, 8), (4, 8, 100, 32), (3, 5, 2, 3), (7, 1, 4, 7)],
)
def test_a_batch_that_does_not_fit_is_told_the_nearest_that_does(num_envs, rollout_length, batch_size, nearest):
    total = num_envs * rollout_length
    message = complaint(num_envs=num_envs, rollout_length=rollout_length, batch_size=batch_size)

    assert message == (
        f"batch_size must divide num_envs x rollout_length = {num_envs} x {rollout_length} = {total}; "
        f"found {batch_size}, the nearest that does is {nearest}."
    )


def test_a_team_size_is_set_for_the_environment_and_not_for_the_run():
    plan = make_plan(task="toy/routing", preset="quick", settings={"env.num_agents": 3})

    assert plan.run.env == {"num_agents": 3}


def test_arguments_of_python_are_checked_like_settings():
    with pytest.raises(gw.UserError, match=r"seeds must be a whole number; found 2\.5"):
        make_plan(task="toy/maze", preset="quick", run={"seeds": 2.5})
    with pytest.raises(gw.UserError, match="steps must be a whole number; found 'many'"):
        make_plan(task="toy/maze", preset="quick", run={"steps": "many"})


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("clip=0.1", "clip", 0.1),
        ("hidden_sizes=[64, 64]", "hidden_sizes", [64, 64]),
        ("norm_adv=false", "norm_adv", False),
        ("energy=dot", "energy", "dot"),
        ("energy='dot'", "energy", "dot"),
        ("steps=1_000", "steps", 1000),
        (" clip = 0.1", "clip", 0.1),
        ("env.map=a=b", "env.map", "a=b"),
    ],
)
def test_settings_are_read_as_toml_and_otherwise_as_words(text, key, value):
    assert parse_setting(text) == (key, value)


@pytest.mark.parametrize("text", ["clip", "=0.1", "", " =3"])
def test_a_setting_without_key_or_value_is_refused(text):
    with pytest.raises(gw.UserError, match="Expected --set key=value"):
        parse_setting(text)


@pytest.mark.parametrize("task", ["toy/rooms", "module:factory"])
def test_a_task_after_a_setting_is_told_its_place(task):
    with pytest.raises(gw.UserError, match=f"found '{task}'. A task comes before --set"):
        parse_setting(task)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[run]\ntask = 'toy/rooms'\nalgo = 'cppo'\n[env]\ngoal = 'x'\n", ["'goal' is no argument"]),
        ("[run]\nalgo = 'cppo'\n", ["task"]),
        ("[run]\ntask = 'toy/rooms'\nalgo = 'cpo'\n", ["cpo", "cppo"]),
        ("[run]\ntask = 'toy/rooms'\nalgo = 'cppo'\nseed = 3\n", ["seed"]),
        ("run = []\n", ["config.toml"]),
        ("not toml", ["config.toml"]),
    ],
)
def test_a_config_that_goalward_did_not_write_is_explained(tmp_path, text, parts):
    from goalward.run.directory import RunDirectory

    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(gw.UserError) as caught:
        RunDirectory.open(tmp_path).plan()

    assert [part for part in parts if part not in str(caught.value)] == []


def test_every_setting_of_the_run_can_be_set_and_is_saved():
    for field in dataclasses.fields(RunConfig):
        if field.type in ("Count", "CountOrZero"):
            plan = plan_of(**{field.name: 1024})
            assert getattr(Plan.from_toml(plan.to_toml()).run, field.name) == 1024


def test_results_are_filed_under_the_task_that_was_played():
    pytest.importorskip("jumanji")
    plan = make_plan(task="connector/5x5x3a", settings={"env.num_agents": 4, "env.grid_size": 6})

    assert plan.task_name(gw.make("connector/5x5x3a", **plan.run.env)) == "connector/6x6x4a,grid_size=6,num_agents=4"


def test_results_on_an_own_environment_are_filed_under_its_name():
    rooms = gw.make("toy/rooms")

    assert make_plan(task="mine:factory").task_name(rooms) == "mine:factory"
    assert make_plan(task="mine:factory", settings={"env.size": 7}).task_name(rooms) == "mine:factory,size=7"
    assert make_plan(task=PYTHON_OBJECT).task_name(rooms) == "toy/rooms"


def test_a_value_of_an_argument_does_not_look_like_a_suite():
    plan = make_plan(task="mine:factory", settings={"env.map": "maps/a.txt"})

    assert plan.task_name(gw.make("toy/rooms")) == "mine:factory,map=maps-a.txt"


@pytest.mark.parametrize(("task", "preset"), [("x" * 300, None), ("toy/rooms", "x" * 300 + ".toml")])
def test_names_longer_than_any_file_has_are_no_presets(task, preset):
    try:
        assert make_plan(task=task, preset=preset).run.preset == "default"
    except gw.UserError as error:
        assert "there is none at that path" in str(error)


def test_none_brings_back_what_the_environment_decides():
    plan = plan_of(entropy_coef=0.5)

    assert plan_of(entropy_coef=None).algo.entropy_coef is None
    assert plan.algo.entropy_coef == 0.5
    with pytest.raises(gw.UserError, match=r"clip must be a number; found None\."):
        plan_of(clip=None)


@pytest.mark.parametrize("key", ["task", "algo", "preset", "goal", "reward"])
def test_what_has_an_argument_of_its_own_is_no_setting(key):
    with pytest.raises(gw.UserError, match=f"^'{key}' is no setting; it has an argument of its own"):
        plan_of(**{key: "x"})


def test_a_preset_that_cannot_be_read_is_explained(tmp_path, monkeypatch):
    def read(path, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    preset = tmp_path / "mine.toml"
    preset.write_text("")
    monkeypatch.setattr(Path, "read_text", read)
    with pytest.raises(gw.UserError, match=r"Expected the preset '.*mine\.toml' to be readable; Permission denied\."):
        make_plan(task="toy/rooms", preset=preset)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[run]\ntask = 3", "task must be a word; found 3"),
        ("[run]\nseeds = " + "1" * 5000, "not valid TOML; ValueError: "),
        ("[cppo]\nhidden_sizes = " + "[" * 5000, "not valid TOML; RecursionError: "),
        ("[cppo]\nclip = 1" + "0" * 400, "clip must be a number that a float can hold"),
    ],
)
def test_a_preset_with_impossible_values_is_explained(tmp_path, text, complaint):
    preset = tmp_path / "mine.toml"
    preset.write_text(text)
    with pytest.raises(gw.UserError, match=complaint):
        make_plan(task="toy/rooms", preset=preset)


def test_a_setting_of_another_method_is_named_as_such():
    with pytest.raises(gw.UserError, match=r"replay_size is a setting of csac, icsac, cdqn, and not of ppo\."):
        make_plan(task="toy/rooms", algo="ppo", preset="quick", settings={"replay_size": 64})
