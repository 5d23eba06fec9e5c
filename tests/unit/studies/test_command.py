"""`goalward study` and `goalward report` refuse what they cannot do, in a sentence and with exit code 2."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from goalward.cli import _parser
from goalward.run.config import make_plan, parse_setting
from goalward.run.directory import RunDirectory
from goalward.studies.conduct import command
from goalward.studies.declare import load_study, parse_study
from goalward.studies.directory import StudyDirectory


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["papper"], "Unknown study 'papper'. Did you mean paper?"),
        (["nowhere.toml"], "Expected 'nowhere.toml' to be the TOML file of a study; there is none at that path."),
        (["paper", "--scale", "2"], "--scale must be above 0 and at most 1; found 2.0."),
        (["paper", "--scale", "x"], "Argument --scale: invalid float value: 'x'"),
        (["paper", "--tasks", "smax/3mm"], "Unknown task in the study paper: 'smax/3mm'."),
        (["paper", "--tasks", "smax/3m", "--algos", "cdqn"], "The study paper has no cell of cdqn on smax/3m."),
    ],
)
def test_a_study_that_cannot_be_is_refused(goalward, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, out, err = goalward("study", *arguments)

    assert code == 2
    assert sentence in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "value"), [("GOALWARD_DEVICES", "two"), ("GOALWARD_CACHE", "maybe")])
def test_a_variable_that_no_run_could_read_is_refused_before_any(goalward, tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    code, out, err = goalward("study", "paper", "--out", tmp_path / "study")

    assert (code, out) == (2, "")
    assert f"{name} must be" in err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_belongs_to_one_study(goalward, tmp_path):
    StudyDirectory.create(tmp_path / "study", load_study("paper").scaled(0.5))
    code, _, err = goalward("study", "paper", "--out", tmp_path / "study", "--tasks", "navix/fourrooms")
    assert code == 2
    assert "holds a study that is declared or scaled in another way" in err

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("not yours")
    code, _, err = goalward("study", "paper", "--out", tmp_path / "mine")
    assert code == 2
    assert "is neither" in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_several_processes_can_begin_at_once(tmp_path):
    study = load_study("critic-loss")
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda i: StudyDirectory.create(tmp_path / str(i // 4), study).read(), range(80))
        assert all(read == study for read in found)


@pytest.mark.parametrize(
    ("line", "damage"), [("name = .*", "name = 3"), ("scale = .*", "scale = 'y'"), ("seeds = .*", "seeds = 0")]
)
def test_a_damaged_declaration_is_named(goalward, tmp_path, line, damage):
    directory = StudyDirectory.create(tmp_path / "study", load_study("paper"))
    directory.declaration.write_text(re.sub(line, damage, directory.declaration.read_text(), count=1))
    code, _, err = goalward("report", tmp_path / "study")

    assert code == 2
    assert "study.toml' to be as the study wrote it" in err


def test_a_report_of_nothing_is_refused(goalward, tmp_path):
    for path, sentence in ((tmp_path, "found none"), (tmp_path / "nowhere", "there is none at that path")):
        code, out, err = goalward("report", path)
        assert code == 2
        assert sentence in err
        assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_command_of_a_cell_gives_the_run_that_was_planned(tmp_path):
    """Settings of every kind survive the way through a command line."""
    tables = {
        "seeds": 3,
        "steps": 2000,
        "preset": "quick",
        "settings": {"hidden_sizes": [16, 8], "eval_episodes": 8},
        "groups": [
            {
                "tasks": ["toy/routing"],
                "algos": ["cppo"],
                "goals": ["distance"],
                "variants": {"mine": {"critic_loss": "symmetric", "norm_obs": True, "clip": 0.25}},
            }
        ],
    }
    study = parse_study("mine", tables)
    (cell,) = study.cells
    _, _, _, *arguments = command(study, cell, RunDirectory(tmp_path / "run"))
    options = _parser().parse_args(arguments)
    plan = make_plan(
        task=options.task,
        algo=options.algo,
        preset=options.preset,
        run={"seeds": options.seeds, "steps": options.steps, "goal": options.goal},
        settings=dict(parse_setting(text) for text in options.set),
    )

    assert options.out == tmp_path / "run"
    assert options.goal == "distance"
    assert plan.algo == study.plan(cell).algo
    assert plan.algo.hidden_sizes == (16, 8)
    assert (plan.run.seeds, plan.run.steps, plan.run.eval_episodes) == (3, 2000, 8)
