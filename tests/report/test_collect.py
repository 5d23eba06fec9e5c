"""Runs are found, read as they were written, and taken together where that makes sense."""

import json

import numpy as np
import pytest
from made_runs import write_run

from goalward.errors import UserError
from goalward.report.collect import collect, marl_eval_data, series_of
from goalward.studies.declare import load_study
from goalward.studies.directory import StudyDirectory

SURVEY = {
    "facings": [""],
    "actions": ["up"],
    "is_free": [[True]],
    "target": [0, 0],
    "value": [[[1]]],
    "action": [[[0]]],
}
RATES = [[0.0, 0.1], [0.5, 0.6], [0.7, 0.8]]


def test_a_run_is_read_as_it_was_written(tmp_path):
    write_run(tmp_path / "a" / "b", "toy/rooms", "cppo", RATES, absolute=[0.75, 0.85], extra={"task/crashed": 0.25})
    (run,) = collect([tmp_path]).runs

    assert (run.task, run.method, run.seeds) == ("toy/rooms", "cppo", (0, 1))
    np.testing.assert_array_equal(run.steps, [0, 500, 1000])
    np.testing.assert_array_equal(run.win_rate, RATES)
    np.testing.assert_array_equal(run.results.best["win_rate"], [0.75, 0.85])
    np.testing.assert_array_equal(run.results.best["crashed"], [0.25, 0.25])
    assert run.seconds == 120.0
    (series,) = series_of([run])
    assert list(series.measures) == ["win_rate", "return", "length", "crashed"]


def test_a_directory_that_is_named_twice_is_read_once(tmp_path):
    write_run(tmp_path / "a", "toy/rooms", "cppo", RATES)

    assert len(collect([tmp_path, tmp_path / "a"]).runs) == 1


def test_an_evaluation_that_lacks_a_seed_is_passed_over(tmp_path):
    path = write_run(tmp_path / "a", "toy/rooms", "cppo", RATES, finished=False)
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    (run,) = collect([tmp_path]).runs

    np.testing.assert_array_equal(run.win_rate, RATES[:2])
    assert run.results is None
    assert not series_of([run])[0].is_finished


def test_other_seeds_of_the_same_are_taken_together(tmp_path):
    write_run(tmp_path / "a", "toy/rooms", "cppo", RATES, absolute=[0.1, 0.2])
    kept = {"keep_checkpoints": 9, "checkpoint_share": 0.5, "render_episodes": 0}
    write_run(tmp_path / "b", "toy/rooms", "cppo", RATES, run={"first_seed": 2, **kept}, absolute=[0.3, 0.4])
    (series,) = series_of(collect([tmp_path]).runs)

    np.testing.assert_array_equal(series.final, [0.1, 0.2, 0.3, 0.4])
    assert series.win_rate.shape == (3, 4)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"last_step": 2000, "run": {"first_seed": 2}},
        {"run": {"first_seed": 2}, "settings": {"actor_lr": 0.01}},
        {"run": {"first_seed": 2}, "settings": {"env.size": 11}},
        {"run": {"first_seed": 2}, "settings": {"eval_episodes": 8}},
    ],
)
def test_a_run_that_repeats_a_seed_or_was_made_in_another_way_stands_alone(tmp_path, other):
    write_run(tmp_path / "a", "toy/rooms", "cppo", RATES)
    write_run(tmp_path / "b", "toy/rooms", "cppo", RATES, **other)
    names = [series.method for series in series_of(collect([tmp_path]).runs)]

    assert names == ["cppo", "cppo (b)"]


def test_no_run_is_lost_among_many_of_the_same_name(tmp_path):
    for study, rate in (("a", 0.3), ("b", 0.6), ("c", 0.9)):
        write_run(tmp_path / study / "cppo", "toy/rooms", "cppo", np.full((3, 2), rate))
    found = {series.method: series.final[0] for series in series_of(collect([tmp_path]).runs)}

    assert found == {"cppo": 0.3, "cppo (b/cppo)": 0.6, "cppo (c/cppo)": 0.9}


def test_an_unfinished_run_does_not_hide_a_finished_one(tmp_path):
    write_run(tmp_path / "a", "toy/rooms", "cppo", RATES)
    write_run(tmp_path / "b", "toy/rooms", "cppo", RATES, run={"first_seed": 2}, finished=False)

    assert [series.is_finished for series in series_of(collect([tmp_path]).runs)] == [True, False]


def test_an_unfinished_run_has_its_arguments_in_the_tasks_name(tmp_path):
    write_run(tmp_path / "a", "toy/rooms", "cppo", RATES, settings={"env.size": 11}, finished=False)

    assert collect([tmp_path]).runs[0].task == "toy/rooms,size=11"


@pytest.mark.parametrize(("number", "damage"), [('"win_rate": 0.7', '"win_rate": NaN'), ("1000", str(10**400))])
def test_a_win_rate_or_a_step_that_is_no_number_is_refused(tmp_path, number, damage):
    path = write_run(tmp_path / "a", "toy/rooms", "cppo", RATES) / "metrics.jsonl"
    path.write_text(path.read_text().replace(number, damage))

    with pytest.raises(UserError, match=r"metrics.jsonl' to be numbers"):
        collect([tmp_path])


def test_a_goal_and_a_reward_are_named_where_they_are_not_the_tasks_own(tmp_path):
    write_run(tmp_path / "a", "toy/routing", "cppo", RATES, run={"goal": "distance", "reward": "dense"})
    write_run(tmp_path / "b", "toy/routing", "ppo", RATES, run={"goal": "position", "reward": "sparse"})

    assert [run.method for run in collect([tmp_path]).runs] == ["cppo goal=distance", "ppo reward=sparse"]


def test_what_is_no_run_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(UserError, match="there is none at that path"):
        collect([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="found none"):
        collect([tmp_path])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.json", "{"),
        ("results.json", "[]"),
        ("results.json", json.dumps({"toy": {"rooms": {"cppo": {"seed_0": {}}}}})),
        (
            "results.json",
            json.dumps({"toy": {"rooms": {"cppo": {f"seed_{s}": {"absolute_metrics": {}} for s in (0, 1)}}}}),
        ),
        ("versions.json", "{"),
        ("versions.json", json.dumps({"devices": None})),
        ("versions.json", json.dumps({"packages": ["jax"]})),
        ("media/survey.json", "{}"),
        ("media/survey.json", json.dumps(SURVEY | {"target": [float("inf"), 1]})),
        ("media/survey.json", json.dumps(SURVEY | {"is_free": [], "value": [[]], "action": [[]]})),
        ("media/survey.json", json.dumps(SURVEY | {"action": [[[7]]]})),
        ("media/survey.json", json.dumps(SURVEY | {"is_free": [True]})),
        ("media/survey.json", json.dumps(SURVEY | {"target": [10**400, 0]})),
        ("versions.json", '{"goalward": "\\ud800"}'),
        (
            "metrics.jsonl",
            '{"seed": 0, "evaluation": 0, "iteration": 0, "step": NaN, "win_rate": 0.5, "elapsed": 1}\n' * 2,
        ),
        ("config.toml", '[run]\ntask = "toy/rooms"\nalgo = "zzz"\n'),
        ("media/survey.json", json.dumps({"is_free": [[True]], "value": 1, "action": 1})),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content):
    path = write_run(tmp_path / "a", "toy/rooms", "cppo", RATES)
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text(content)

    with pytest.raises(UserError, match=name.rpartition("/")[2]):
        collect([tmp_path])


def test_all_runs_go_into_one_file_of_marl_eval(tmp_path):
    """Its documented format: names without commas, the same steps for every seed, every measure a list."""
    for task in ("toy/rooms", "toy/swarm"):
        for algo in ("cppo", "ppo"):
            write_run(tmp_path / task / algo, task, algo, RATES, absolute=[0.75, 0.85])
    write_run(tmp_path / "more", "toy/rooms", "cppo", RATES, run={"first_seed": 2}, absolute=[0.3, 0.4])
    write_run(tmp_path / "begun", "toy/rooms", "cppo", RATES, run={"first_seed": 9}, finished=False)
    data = marl_eval_data(series_of(collect([tmp_path]).runs))

    assert {task: list(methods) for task, methods in data["toy"].items()} == {
        "rooms": ["cppo", "ppo"],
        "swarm": ["cppo", "ppo"],
    }
    assert list(data["toy"]["rooms"]["cppo"]) == ["seed_0", "seed_1", "seed_2", "seed_3"]
    for methods in data["toy"].values():
        for method, seeds in methods.items():
            assert "," not in method
            for evaluations in seeds.values():
                assert set(evaluations) == {"step_0", "step_1", "step_2", "absolute_metrics"}
                steps = [evaluations[f"step_{i}"].pop("step_count") for i in range(3)]
                assert steps == [0, 500, 1000]
                for name, measures in evaluations.items():
                    lists = {key: value for key, value in measures.items() if key != "elapsed_time"}
                    assert set(lists) == {"win_rate", "return", "length"}, name
                    assert all(len(values) == 1 for values in lists.values())
    assert data["toy"]["rooms"]["cppo"]["seed_3"]["absolute_metrics"]["win_rate"] == [0.4]


def test_the_plain_name_is_for_a_run_that_can_be_judged(tmp_path):
    write_run(tmp_path / "1", "toy/rooms", "cppo", RATES, finished=False)
    write_run(tmp_path / "2", "toy/rooms", "cppo", RATES)
    found = {series.method: series.is_finished for series in series_of(collect([tmp_path]).runs)}

    assert found == {"cppo": True, "cppo (1)": False}


def test_a_study_is_counted_once_however_often_it_is_named(tmp_path):
    StudyDirectory.create(tmp_path / "study", load_study("critic-loss"))
    write_run(tmp_path / "study" / "run", "toy/rooms", "cppo", RATES)
    found = collect([tmp_path, tmp_path / "study"])

    assert (len(found.studies), len(found.missing), len(found.runs)) == (1, 15, 1)
