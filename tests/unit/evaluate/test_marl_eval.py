"""The raw-data layout of MARL-eval."""

from goalward.evaluate.records import marl_eval_layout


def record(seed, evaluation, win_rate):
    return {
        "seed": seed,
        "evaluation": evaluation,
        "step": 100 * evaluation,
        "elapsed": 1.5 * evaluation,
        "win_rate": win_rate,
        "return": 10.0 * win_rate,
        "length": 7.0,
    }


RECORDS = [record(0, 0, 0.1), record(3, 0, 0.2), record(0, 1, 0.5), record(3, 1, 0.4)]


def test_every_evaluation_stands_under_task_algorithm_and_seed():
    layout = marl_eval_layout(RECORDS, None, task="toy/rooms", algo="cppo")
    assert list(layout) == ["toy"]
    assert list(layout["toy"]) == ["rooms"]
    seeds = layout["toy"]["rooms"]["cppo"]
    assert set(seeds) == {"seed_0", "seed_3"}
    assert set(seeds["seed_0"]) == {"step_0", "step_1", "absolute_metrics"}
    assert seeds["seed_3"]["step_1"] == {
        "step_count": 100,
        "elapsed_time": 1.5,
        "win_rate": [0.4],
        "return": [4.0],
        "length": [7.0],
    }


def test_absolute_metrics_are_those_given_for_the_seed():
    best = {0: {"win_rate": 0.9, "return": 9.0, "length": 3.0}, 3: {"win_rate": 0.8, "return": 8.0, "length": 4.0}}
    seeds = marl_eval_layout(RECORDS, best, task="toy/rooms", algo="cppo")["toy"]["rooms"]["cppo"]
    assert seeds["seed_0"]["absolute_metrics"] == {"win_rate": [0.9], "return": [9.0], "length": [3.0]}
    assert seeds["seed_3"]["absolute_metrics"] == {"win_rate": [0.8], "return": [8.0], "length": [4.0]}


def test_without_absolute_metrics_the_last_evaluation_stands_in():
    seeds = marl_eval_layout(RECORDS, None, task="toy/rooms", algo="cppo")["toy"]["rooms"]["cppo"]
    assert seeds["seed_0"]["absolute_metrics"] == {"win_rate": [0.5], "return": [5.0], "length": [7.0]}
    assert seeds["seed_3"]["absolute_metrics"] == {"win_rate": [0.4], "return": [4.0], "length": [7.0]}


def test_a_task_without_a_suite_is_its_own_suite():
    layout = marl_eval_layout(RECORDS, None, task="corridor", algo="cppo")
    assert list(layout) == ["corridor"]
    assert list(layout["corridor"]) == ["corridor"]


def test_a_task_of_several_parts_keeps_its_last_part_as_the_name():
    layout = marl_eval_layout(RECORDS, None, task="mine/grids/rooms", algo="cppo")
    assert list(layout) == ["mine/grids"]
    assert list(layout["mine/grids"]) == ["rooms"]
