"""make: tasks by name, goals and rewards by name or as objects, environments of one's own."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs.tasks import TASKS, Task

pytestmark = pytest.mark.usefixtures("strict_dtypes")


class Column:
    """A goal of the user's: any cell in the target's column."""

    name = "column"
    dim = 1

    def achieved(self, state):
        return state.position[:, 1:].astype(jnp.float32)

    def target(self, state):
        return state.target[:, 1:].astype(jnp.float32)


class Hurry:
    """A reward of the user's: every step costs."""

    name = "hurry"

    def __call__(self, state, action, next_state):
        return jnp.full(state.arrived.shape, -1.0)


@pytest.fixture
def own_module(tmp_path, monkeypatch, request):
    """Returns the name of a module in the current directory, which is not on the path."""
    name = f"own_{request.node.originalname}"
    (tmp_path / f"{name}.py").write_text(
        "import goalward as gw\n"
        "def make(**arguments):\n"
        "    made.append(arguments)\n"
        "    return gw.make('toy/rooms')\n"
        "def strict(size=3, *, wall=True): return gw.make('toy/rooms')\n"
        "def leave(): raise SystemExit(7)\n"
        "def ramble(): raise RuntimeError('First.\\nSecond.')\n"
        "made = []\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield name
    sys.modules.pop(name, None)


def test_arguments_reach_the_task():
    env = gw.make("toy/rooms", size=5, max_steps=7)

    assert env.spec.max_steps == 7
    assert env.spec.obs_dim == 10


def test_numbers_of_numpy_are_numbers():
    env = gw.make("toy/rooms", size=np.int64(5), max_steps=np.int32(7))

    assert env.spec == gw.make("toy/rooms", size=5, max_steps=7).spec
    assert type(env.spec.max_steps) is int
    with pytest.raises(gw.UserError, match="size of toy/rooms must be a whole number"):
        gw.make("toy/rooms", size=np.True_)


@pytest.mark.parametrize("name", ["sizee", "width"])
def test_an_unknown_argument_is_told_what_the_task_takes(name):
    with pytest.raises(gw.UserError) as caught:
        gw.make("toy/rooms", **{name: 9})

    assert str(caught.value) == f"The environment of 'toy/rooms' takes no argument '{name}'. It takes: max_steps, size."


@pytest.mark.parametrize("task", [3, None, gw.CPPO])
def test_what_is_no_name_is_refused(task):
    with pytest.raises(gw.UserError, match="Expected the name of a task or module:factory; found"):
        gw.make(task)


def test_a_goal_of_ones_own_is_used():
    env = gw.make("toy/rooms", goal=Column())
    state, step = env.reset(jax.random.key(0))

    assert (env.spec.goal_name, env.spec.goal_dim) == ("column", 1)
    np.testing.assert_array_equal(step.achieved, state.position[:, 1:])
    np.testing.assert_array_equal(step.goal, state.target[:, 1:])


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"goal": Column}, "found the class Column; pass an object of it"),
        ({"goal": 3}, "an object with name, dim, achieved, target; found 3"),
        ({"reward": Hurry}, "found the class Hurry; pass an object of it"),
    ],
)
def test_what_is_no_goal_or_reward_is_refused(parts, sentence):
    with pytest.raises(gw.UserError, match=sentence):
        gw.make("toy/rooms", **parts)


def test_a_reward_of_ones_own_is_used():
    env = gw.make("toy/maze", reward=Hurry())
    state, _ = env.reset(jax.random.key(0))
    _, step = env.step(jax.random.key(1), state, jnp.zeros((1, 2)))

    assert env.spec.reward_name == "hurry"
    assert step.reward.tolist() == [-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"task": "toy/romms"}, "Unknown task 'toy/romms'. Did you mean toy/rooms"),
        ({"task": ""}, "Unknown task ''."),
        ({"task": "toy/swarm", "goal": "distanc"}, "Unknown goal of toy/swarm: 'distanc'. Did you mean distance?"),
        ({"task": "toy/rooms", "goal": "distance"}, "Unknown goal of toy/rooms: 'distance'. Known: position."),
        ({"task": "toy/rooms", "goal": ""}, "Unknown goal of toy/rooms: ''. Known: position."),
        ({"task": "toy/rooms", "reward": "dens"}, "Unknown reward of toy/rooms: 'dens'. Did you mean dense"),
    ],
)
def test_unknown_names_offer_the_known_ones(arguments, words):
    with pytest.raises(gw.UserError) as caught:
        gw.make(**arguments)

    assert words in str(caught.value)


def grid_task(package):
    """Returns a task that a package would bring."""
    return Task(
        name="grid/one",
        constructor=f"{package}:Grid",
        num_agents=1,
        actions="discrete",
        goals={"cell": "goalward.goals.toy:Position"},
        rewards={"none": "goalward.rewards.toy:Sparse"},
        summary="",
        package=package,
        extra="grid",
    )


def test_a_task_whose_package_is_missing_names_the_extra(monkeypatch):
    task = grid_task("nosuchpackage")
    monkeypatch.setitem(TASKS, task.name, task)
    with pytest.raises(gw.UserError) as caught:
        gw.make("grid/one")

    assert not task.is_installed
    assert task.suite == "grid"
    assert "nosuchpackage" in str(caught.value)
    assert "pip install 'goalward[grid]'" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nosuchpart", "No module named 'nosuchpart'"),
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_suite_that_cannot_be_imported_says_why(monkeypatch, tmp_path, code, reason):
    (tmp_path / "halfpackage.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(TASKS, "grid/one", grid_task("halfpackage"))
    with pytest.raises(gw.UserError, match=rf"installed but could not be imported; .*{reason}"):
        gw.make("grid/one")


def test_a_module_in_the_current_directory_is_found(own_module):
    assert gw.make(f"{own_module}:make").spec.name == "toy/rooms"


def test_a_factory_gets_the_arguments_and_only_those_that_were_given(own_module):
    gw.make(f"{own_module}:make")
    gw.make(f"{own_module}:make", goal="near", size=3)

    assert sys.modules[own_module].made == [{}, {"goal": "near", "size": 3}]


def test_a_factory_is_told_of_arguments_that_it_does_not_take(own_module):
    gw.make(f"{own_module}:strict", size=4, wall=False)
    for extra in ({"goal": "near"}, {"sizee": 4}):
        with pytest.raises(gw.UserError, match=rf"takes no argument '{next(iter(extra))}'\. It takes: size, wall\."):
            gw.make(f"{own_module}:strict", **extra)


@pytest.mark.parametrize(("factory", "words"), [("leave", "SystemExit: 7"), ("ramble", "RuntimeError: First")])
def test_what_a_factory_raises_is_told_in_one_line(own_module, factory, words):
    with pytest.raises(gw.UserError) as caught:
        gw.make(f"{own_module}:{factory}")

    assert str(caught.value).endswith(f"it raised {words}.")


def test_what_makes_nothing_is_refused(own_module):
    with pytest.raises(gw.UserError, match=f"Expected '{own_module}:number' to name a function or a class.* found int"):
        gw.make(f"{own_module}:number")


@pytest.mark.parametrize("attribute", ["nothing", ""])
def test_what_is_no_factory_is_refused(own_module, attribute):
    with pytest.raises(gw.UserError, match=f"Unknown factory in module '{own_module}': '{attribute}'"):
        gw.make(f"{own_module}:{attribute}")
