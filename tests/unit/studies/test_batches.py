"""Which cells of a study train in one program."""

import pytest

import goalward as gw
from goalward.cli import _parser
from goalward.studies.batches import batches, train_cells
from goalward.studies.conduct import command_together
from goalward.studies.declare import Study, load_study, parse_study
from goalward.studies.directory import StudyDirectory

VARIANTS = {
    "plain": {},
    "wider": {"hidden_sizes": [32]},
    "bold": {"clip": 0.4},
    "careful": {"actor_lr": 1e-4, "entropy_coef": 0.02},
    "wider-bold": {"hidden_sizes": [32], "clip": 0.4},
    "clipped": {"num_epochs": 2},
}


def study_of(**changes):
    group = {"tasks": ["toy/rooms", "toy/swarm"], "algos": ["cppo"], "variants": VARIANTS}
    return parse_study("mine", {"seeds": 2, "steps": 2000, "preset": "quick", "groups": [group], **changes})


def names(found):
    return [[f"{cell.task.removeprefix('toy/')} {cell.variant}" for cell in batch] for batch in found]


def test_cells_are_together_that_differ_in_traced_settings_alone(tmp_path):
    study = study_of()
    found = names(batches(study, StudyDirectory(tmp_path), study.cells))

    assert found == [
        [f"{task} {name}" for name in batch]
        for task in ("rooms", "swarm")
        for batch in (["plain", "bold", "careful"], ["wider", "wider-bold"], ["clipped"])
    ]


def test_goals_and_methods_are_not_mixed(tmp_path):
    group = {
        "tasks": ["toy/routing"],
        "algos": ["cppo"],
        "goals": ["position", "distance"],
        "variants": {"a": {}, "b": {"clip": 0.1}},
    }
    study = parse_study("goals", {"preset": "quick", "groups": [group]})
    found = list(batches(study, StudyDirectory(tmp_path), study.cells))

    assert [[(cell.goal, cell.variant) for cell in batch] for batch in found] == [
        [("position", "a"), ("position", "b")],
        [("distance", "a"), ("distance", "b")],
    ]


def test_a_study_may_say_otherwise(tmp_path):
    study = study_of(together=False)

    assert all(len(batch) == 1 for batch in batches(study, StudyDirectory(tmp_path), study.cells))
    assert Study.from_tables(study.to_tables()) == study
    assert "together" not in study_of().to_tables()  # so that a directory of an earlier version is still its own
    with pytest.raises(gw.UserError, match="together must be true or false; found 'no'"):
        study_of(together="no")


def test_cells_that_are_finished_held_or_further_than_others_are_left_out(tmp_path):
    study, directory = study_of(), StudyDirectory(tmp_path)
    rooms = study.only(["toy/rooms"], []).cells
    plain, _, bold, careful, *_ = rooms
    runs = {cell.variant: directory.run(cell) for cell in rooms}
    for run in runs.values():
        run.path.mkdir(parents=True)

    (runs["bold"].checkpoints / "70").mkdir(parents=True)
    (runs["bold"].checkpoints / "80.orbax-checkpoint-tmp").mkdir()
    assert names(batches(study, directory, rooms))[0] == ["rooms plain", "rooms careful"]
    (runs["plain"].checkpoints / "70").mkdir(parents=True)
    assert names(batches(study, directory, rooms))[0] == ["rooms plain", "rooms bold"]
    with runs["bold"].locked():
        assert names(batches(study, directory, rooms))[0] == ["rooms plain"]
    runs["plain"].results.touch()
    assert names(batches(study, directory, [plain, bold, careful])) == [
        ["rooms plain"],
        ["rooms bold"],
        ["rooms careful"],
    ]


def test_how_a_cell_stands_is_looked_up_when_its_turn_comes(tmp_path):
    study, directory = study_of(), StudyDirectory(tmp_path)
    found = batches(study, directory, study.cells)
    next(found)
    run = directory.run(study.cells[4])
    run.path.mkdir(parents=True)
    run.results.touch()

    assert names([next(found)]) == [["rooms wider"]]


def test_all_variants_of_a_task_in_the_sensitivity_study_fit_one_program(tmp_path):
    study = load_study("sensitivity")
    found = list(batches(study, StudyDirectory(tmp_path), study.cells))

    assert [len(batch) for batch in found] == [13, 13, 13]
    plans = [study.plan(cell) for cell in found[0]]
    assert len({plan.algo for plan in plans}) == 13
    assert plans[0].algo == gw.CPPO()


def test_the_command_names_the_cells(tmp_path):
    study = study_of()
    batch = next(batches(study, StudyDirectory(tmp_path), study.cells))
    _, _, _, *arguments = command_together(StudyDirectory(tmp_path), batch)
    options = _parser().parse_args(arguments)

    assert options.directory == tmp_path
    assert options.folders == ["toy/rooms/cppo-plain", "toy/rooms/cppo-bold", "toy/rooms/cppo-careful"]


def test_a_folder_that_is_no_cell_is_refused(tmp_path):
    directory = StudyDirectory.create(tmp_path / "study", study_of())
    with pytest.raises(gw.UserError, match="found 'toy/rooms/ppo'"):
        train_cells(directory, ["toy/rooms/cppo-plain", "toy/rooms/ppo"])
