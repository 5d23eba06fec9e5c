"""Declared studies: what the package ships, and what a file may say."""

import tomllib

import pytest
import tomli_w

import goalward as gw
from goalward.studies.declare import Study, load_study, parse_study, study_names

SMALL = """
title = "Two tasks"
seeds = 3
steps = 2_000
preset = "quick"

[settings]
eval_episodes = 8

[[groups]]
tasks = ["toy/rooms", "toy/swarm"]
algos = ["cppo", "ppo"]

[[groups]]
tasks = ["toy/routing"]
algos = ["cppo"]
goals = ["position", "distance"]

[groups.settings]
critic_loss = "backward"
clip = 0.3

[groups.variants]
plain = {}
symmetric = { critic_loss = "symmetric" }
"""


@pytest.fixture(scope="module")
def small():
    return parse_study("small", tomllib.loads(SMALL))


@pytest.mark.parametrize(
    ("name", "num_cells"),
    [
        ("paper", 54),
        ("goal-sensitivity", 7),
        ("reward-sensitivity", 7),
        ("connector-scaling", 12),
        ("navix-sparse-reward", 8),
        ("critic-loss", 15),
        ("sensitivity", 39),
    ],
)
def test_the_studies_of_the_paper_have_its_cells_and_its_protocol(name, num_cells):
    study = load_study(name)

    assert len(study.cells) == num_cells
    for cell in study.cells:
        run = study.plan(cell).run
        assert (run.seeds, run.steps, run.num_evaluations, run.eval_episodes, run.absolute_factor) == (
            10,
            80_000_000,
            80,
            2048,
            10,
        )


def test_no_study_is_untested():
    assert len(study_names()) == 7


def test_a_variants_settings_go_before_those_of_its_group(small):
    plain, symmetric = (small.plan(cell).algo for cell in small.cells[-2:])

    assert (plain.critic_loss, plain.clip) == ("backward", 0.3)
    assert (symmetric.critic_loss, symmetric.clip) == ("symmetric", 0.3)


def test_cells_are_the_product_of_what_a_group_lists(small):
    assert [(str(cell), str(cell.folder)) for cell in small.cells] == [
        ("toy/rooms with cppo", "toy/rooms/cppo"),
        ("toy/rooms with ppo", "toy/rooms/ppo"),
        ("toy/swarm with cppo", "toy/swarm/cppo"),
        ("toy/swarm with ppo", "toy/swarm/ppo"),
        ("toy/routing with cppo goal=position plain", "toy/routing/cppo-goal=position-plain"),
        ("toy/routing with cppo goal=position symmetric", "toy/routing/cppo-goal=position-symmetric"),
        ("toy/routing with cppo goal=distance plain", "toy/routing/cppo-goal=distance-plain"),
        ("toy/routing with cppo goal=distance symmetric", "toy/routing/cppo-goal=distance-symmetric"),
    ]
    assert small.plan(small.cells[-1]).algo.critic_loss == "symmetric"
    assert small.plan(small.cells[0]).run.eval_episodes == 8


def test_a_scaled_study_has_fewer_steps_and_seeds_but_two_of_those_and_one_iteration(small):
    half = load_study("paper").scaled(0.5)
    assert (half.seeds, half.steps, half.scale) == (5, 40_000_000, 0.5)
    tiny = small.scaled(1e-6)
    assert (tiny.seeds, tiny.steps) == (2, 1)
    plan = tiny.plan(tiny.cells[0])
    assert plan.run.steps == plan.algo.steps_per_iteration()


@pytest.mark.parametrize("scale", [0.0, -1.0, 1.5, float("nan")])
def test_a_scale_that_is_no_share_is_refused(small, scale):
    with pytest.raises(gw.UserError, match="--scale must be above 0 and at most 1"):
        small.scaled(scale)


def test_a_part_of_a_study(small):
    assert [str(cell) for cell in small.only(["toy/swarm"], ["ppo"]).cells] == ["toy/swarm with ppo"]
    with pytest.raises(gw.UserError, match=r"Unknown task in the study small: 'toy/swam'\. Did you mean toy/swarm"):
        small.only(["toy/swam"], [])
    with pytest.raises(gw.UserError, match="has no cell of ppo on toy/routing"):
        small.only(["toy/routing"], ["ppo"])


def test_a_study_survives_its_file(small):
    assert Study.from_tables(tomllib.loads(tomli_w.dumps(small.to_tables()))) == small


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "tables [[groups]] with tasks and algos; found none"),
        ("groups = 3", "tables [[groups]] with tasks and algos; found none"),
        ("sedes = 3", "Unknown key in the study mine: 'sedes'. Did you mean seeds"),
        ("groups = [3]", "Expected groups in the study mine to be a table; found 3"),
        ("[[groups]]\ntasks = ['toy/rooms']", "Expected a group of the study mine to list algos; found none"),
        (
            "[[groups]]\ntasks = 'toy/rooms'\nalgos = ['cppo']",
            "tasks in a group of the study mine to be a list of names",
        ),
        ("[[groups]]\ntasks = ['toy/roms']\nalgos = ['cppo']", "In the study mine, toy/roms with cppo: Unknown task"),
        ("[[groups]]\ntasks = ['toy/rooms']\nalgos = ['cpo']", "In the study mine, toy/rooms with cpo: Unknown algo"),
        ("[[groups]]\ntasks = ['toy/rooms']\nalgos = ['cppo']\ngoals = ['x']", "Unknown goal of toy/rooms: 'x'"),
        ("[[groups]]\ntasks = ['toy/rooms']\nalgos = ['ppo']\nrewards = ['x']", "Unknown reward of toy/rooms: 'x'"),
        ("[[groups]]\ntasks = ['toy/rooms', 'toy/rooms']\nalgos = ['cppo']", "found 'toy/rooms/cppo' 2 times"),
        (
            "[[groups]]\ntasks = ['toy/rooms']\nalgos = ['cppo']\nvariants = { '' = {} }",
            "to have a name; found an empty",
        ),
        (
            f"[[groups]]\ntasks = ['toy/rooms']\nalgos = ['cppo']\nvariants = {{ {'x' * 300} = {{}} }}",
            "at most 200 bytes",
        ),
        (
            "[[groups]]\ntasks = ['toy/rooms']\nalgos = ['cppo']\nvariants = { a = 1 }",
            "Expected variants.a in",
        ),
        (
            "[[groups]]\ntasks = ['toy/rooms']\nalgos = ['cppo']\nvariants = { a = { clip = 7 } }",
            "In the study mine, toy/rooms with cppo a: clip must be",
        ),
        ("seeds = 0\n[[groups]]\ntasks = ['toy/rooms']\nalgos = ['cppo']", "seeds must be at least 1; found 0"),
        ("seeds = 'x'\n[[groups]]\ntasks = ['toy/rooms']\nalgos = ['cppo']", "seeds must be a whole number"),
        ("settings = 3\n[[groups]]\ntasks = ['toy/rooms']\nalgos = ['cppo']", "Expected settings in the study mine"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(text, complaint):
    with pytest.raises(gw.UserError) as caught:
        parse_study("mine", tomllib.loads(text))
    assert complaint in str(caught.value)


def test_a_study_is_found_by_name_or_by_file(tmp_path):
    with pytest.raises(gw.UserError, match=r"Unknown study 'papper'\. Did you mean paper"):
        load_study("papper")
    with pytest.raises(gw.UserError, match="there is none at that path"):
        load_study(str(tmp_path / "none.toml"))
    (tmp_path / "broken.toml").write_text("= 3")
    with pytest.raises(gw.UserError, match="is not valid TOML"):
        load_study(str(tmp_path / "broken.toml"))
    (tmp_path / "mine.toml").write_text(SMALL)
    assert load_study(str(tmp_path / "mine.toml")).name == "mine"


def test_names_that_differ_have_folders_that_differ():
    tables = {"groups": [{"tasks": ["toy/rooms"], "algos": ["cppo"], "variants": {"ä": {}, "ö": {}}}]}

    assert [cell.folder.name for cell in parse_study("umlauts", tables).cells] == ["cppo-ä", "cppo-ö"]


def test_arguments_of_the_environment_may_be_a_table():
    tables = {"settings": {"env": {"size": 11}}, "groups": [{"tasks": ["toy/rooms"], "algos": ["cppo"]}]}
    study = parse_study("larger", tables)

    assert study.settings == {"env.size": 11}
    assert study.plan(study.cells[0]).run.env == {"size": 11}
