"""jaxgcrl: constants, targets, mazes and arguments; all that needs no physics."""

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import goalward as gw
from goalward.envs.imports import quiet_import

with quiet_import():
    pytest.importorskip("brax")
    from brax.io import mjcf
    from mujoco import mjx

    from goalward.envs.jaxgcrl.maze import LAYOUTS, checked_layout, merged_cells
    from goalward.envs.jaxgcrl.physics import brax_model, load_system

pytestmark = pytest.mark.usefixtures("suite_arithmetic")

TASKS = ("jaxgcrl/reacher", "jaxgcrl/ant", "jaxgcrl/ant-u-maze")
CELLS = {(4, 8), (4, 12), (8, 12), (12, 4), (12, 8), (12, 12)}


def test_the_figures_of_the_suite():
    envs = [gw.make(name) for name in TASKS]

    assert [env.spec.obs_dim for env in envs] == [10, 29, 29]
    assert [env.spec.goal_dim for env in envs] == [3, 2, 2]
    assert [env.spec.action_space for env in envs] == [gw.Box((-1.0,) * n, (1.0,) * n) for n in (2, 8, 8)]
    assert [env.spec.max_steps for env in envs] == [1000, 1000, 1000]
    assert [env.reach for env in envs] == [0.05, 0.5, 0.5]
    assert [env.dt for env in envs] == [0.02, 0.05, 0.05]
    assert [env.physics._n_frames for env in envs] == [2, 10, 10]


def test_the_default_backends_are_those_of_the_suites_factory():
    assert [gw.make(name).physics.backend for name in TASKS] == ["generalized", "spring", "spring"]


def test_making_a_task_prints_nothing(tmp_path):
    code = "import goalward; goalward.make('jaxgcrl/reacher')"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)

    assert (answer.stdout, answer.stderr) == ("", "")


@pytest.mark.parametrize(("name", "is_imported"), [("jaxgcrl/ant", False), ("jaxgcrl/reacher", True)])
def test_libraries_that_a_robot_does_not_need_are_not_imported(tmp_path, name, is_imported):
    """Neither has meshes, and only the arm's backend asks for an optimiser, before anything is traced."""
    code = f"import sys, goalward; goalward.make('{name}')\n"
    code += "print('trimesh' in sys.modules, 'jaxopt.projection' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)

    assert answer.stdout == f"False {is_imported}\n"


@pytest.mark.parametrize("name", TASKS)
def test_making_a_task_compiles_hardly_anything(tmp_path, name):
    """Brax's model has a hundred arrays of dozens of shapes, each of which could be a program."""
    code = f"import goalward; goalward.make('{name}')"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"JAX_LOG_COMPILES": "1"},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )

    assert 1 <= answer.stderr.count("Compiling jit(") <= 5


@pytest.mark.parametrize(("name", "constants"), [("jaxgcrl/reacher", []), ("jaxgcrl/ant", [".mass"])])
def test_what_physics_starts_from_differs_between_environments(name, constants):
    """But for what it never changes: otherwise `vmap` would go through the whole loop of a step twice."""
    physics = gw.make(name).physics
    first = jax.vmap(lambda key: physics.shrink(physics.first(key)))
    small = jax.eval_shape(first, jax.random.split(jax.random.key(0), 2))
    paths, _ = zip(*jax.tree.leaves_with_path(jax.eval_shape(jax.vmap(physics.restore), small)), strict=True)

    def part(i):
        return lambda small: jax.tree.leaves(physics.restore(small))[i]

    assert [jax.tree_util.keystr(path) for i, path in enumerate(paths) if _is_common(part(i), small)] == constants


def _is_common(function, arguments):
    """Returns whether a result is the same for all, for all that `vmap` knows."""
    try:
        jax.eval_shape(jax.vmap(function, out_axes=None), arguments)
    except ValueError:
        return False
    return True


def test_models_are_made_on_the_default_device_and_used_on_any(monkeypatch):
    chosen, models, put_model = jax.devices()[3], [], mjx.put_model

    def watched(*args, **kwargs):
        models.append(put_model(*args, **kwargs))
        return models[-1]

    monkeypatch.setattr(mjx, "put_model", watched)
    with jax.default_device(chosen):
        system = load_system.__wrapped__(brax_model("reacher.xml"))

    arrays = [leaf for leaf in jax.tree.leaves(models) if isinstance(leaf, jax.Array)]
    assert arrays
    assert all(array.devices() == {chosen} for array in arrays)
    assert not any(leaf.committed for leaf in jax.tree.leaves(system) if isinstance(leaf, jax.Array))
    assert (mjx.put_model, mjcf.jp) == (watched, jnp)


def test_models_can_be_made_while_a_mesh_is_set():
    with jax.set_mesh(jax.make_mesh((2,), ("half",))):
        system = load_system.__wrapped__(brax_model("reacher.xml"))

    np.testing.assert_allclose(system.gravity, [0.0, 0.0, -9.81])


@pytest.mark.parametrize("name", TASKS[1:])
def test_the_built_ant_has_17_coordinates_and_8_actuators(name):
    system = gw.make(name).physics.sys

    assert (system.q_size(), system.qd_size(), system.act_size(), system.num_links()) == (17, 16, 8, 10)


def test_walls_touch_torso_upper_limbs_and_feet():
    def touched(name):
        model = gw.make(name).physics.sys.mj_model
        return {model.geom(i).name for i in range(model.ngeom) if model.geom(i).conaffinity == 1}

    feet = {f"{leg}_foot_geom" for leg in ("left", "right", "third", "fourth")}
    assert touched("jaxgcrl/ant") == {"floor"}
    assert touched("jaxgcrl/ant-u-maze") - {""} == {
        "floor",
        "torso_geom",
        *(f"aux_{i}_geom" for i in range(1, 5)),
        *feet,
    }


def test_the_dense_reward_arrives_and_is_the_default():
    # The suite's factory drops the argument that asks for it.
    assert [gw.make(name).spec.reward_name for name in TASKS] == ["dense"] * 3
    assert gw.make("jaxgcrl/ant", reward="sparse").spec.reward_name == "sparse"


def drawn_targets(name, count):
    """Where the physics of many episodes has its target; `reset` takes it from there."""
    start = gw.make(name).physics.start
    q, _ = jax.jit(jax.vmap(start))(jax.random.split(jax.random.key(1), count))
    return np.asarray(q[:, -2:])


def is_uniform(counts):
    """Whether chi-square stays below its 0.999 quantile, approximated after Wilson and Hilferty."""
    freedom, mean = len(counts) - 1, np.mean(counts)
    spread = 2 / (9 * freedom)
    return ((counts - mean) ** 2 / mean).sum() < freedom * (1 - spread + 3.09 * np.sqrt(spread)) ** 3


def test_reacher_targets_are_uniform_in_distance_and_direction():
    target = drawn_targets("jaxgcrl/reacher", 4000)
    distance = np.linalg.norm(target, axis=-1)

    assert distance.max() <= 0.2
    assert is_uniform(np.histogram(distance, 10, (0, 0.2))[0])
    assert is_uniform(np.histogram(np.arctan2(target[:, 1], target[:, 0]), 10, (-np.pi, np.pi))[0])


def test_ant_targets_are_uniform_on_a_circle_of_ten_metres():
    target = drawn_targets("jaxgcrl/ant", 4000)

    np.testing.assert_allclose(np.linalg.norm(target, axis=-1), 10.0, atol=1e-4)
    assert is_uniform(np.histogram(np.arctan2(target[:, 1], target[:, 0]), 10, (-np.pi, np.pi))[0])


def test_maze_targets_are_six_cells_equally_often():
    cells, counts = np.unique(drawn_targets("jaxgcrl/ant-u-maze", 3000), axis=0, return_counts=True)

    assert {tuple(cell) for cell in cells.tolist()} == CELLS
    assert is_uniform(counts)


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_merged_walls_cover_every_wall_cell_once(name):
    walls = np.array([list(row) for row in LAYOUTS[name]]) == "#"
    covered = np.zeros(walls.shape, int)
    rectangles = list(merged_cells(walls))
    for top, bottom, left, right in rectangles:
        covered[top:bottom, left:right] += 1

    np.testing.assert_array_equal(covered, walls)
    assert len(rectangles) < walls.sum() / 2


def test_the_u_maze_is_five_boxes_over_eighteen_cells():
    # Brax's time goes with the number of boxes; with one for every cell the maze is about 3.4 times slower.
    system = gw.make("jaxgcrl/ant-u-maze").physics.sys
    boxes = [(system.geom_pos[i], system.geom_size[i]) for i in np.flatnonzero(system.geom_type == 6)]
    is_solid = np.zeros((5, 5), bool)
    for row, col in np.ndindex(5, 5):
        middle = 4.0 * np.array([row, col])
        is_solid[row, col] = any((np.abs(middle - pos[:2]) < size[:2]).all() for pos, size in boxes)

    assert len(boxes) == 5
    assert ["".join("#" if s else " " for s in row) for row in is_solid] == [
        re.sub("[^#]", " ", row) for row in LAYOUTS["u"]
    ]
    assert all(pos[2] - size[2] == 0 and pos[2] + size[2] == 2.0 for pos, size in boxes)


def test_other_mazes_distances_and_backends_are_one_argument_away():
    own = ["#####", "#S.G#", "#####"]
    maze = gw.make("jaxgcrl/ant-u-maze", layout=own, cell_size=3.0)

    assert maze.spec.name == "jaxgcrl/ant-own-maze-3m"
    assert maze.physics.starts.tolist() == [[3.0, 3.0]]
    assert maze.physics.goals.tolist() == [[3.0, 9.0]]
    assert gw.make("jaxgcrl/ant-u-maze", layout="big").spec.name == "jaxgcrl/ant-big-maze"
    near = gw.make("jaxgcrl/ant", goal_distance=3.0)
    assert near.spec.name == "jaxgcrl/ant-3m"
    np.testing.assert_allclose(np.linalg.norm(near.physics.place(jax.random.key(0))[1]), 3.0, atol=1e-5)
    assert gw.make("jaxgcrl/reacher", backend="spring").spec.name == "jaxgcrl/reacher-spring"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["####", "#SG"], "rows of one length"),
        ([], "rows of one length"),
        (["####", "#SX#", "####"], "drawn with #, S, G and .; found 'X'"),
        (["####", "#.G#", "####"], "a start; found no S"),
        (["####", "#S.#", "####"], "a goal; found no G"),
        (["####", "#SG.", "####"], "walls all around"),
        (["#####", "#S#G#", "#####"], "a way from every start"),
        ("huge", "Unknown layout of jaxgcrl/ant-u-maze 'huge'. Known: big, hardest, u."),
    ],
)
def test_mazes_that_cannot_be_played_are_refused(rows, message):
    with pytest.raises(gw.UserError, match=re.escape(message)):
        checked_layout(rows)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "jaxgcrl/reacher",
            {"backend": "bullet"},
            "one of generalized, mjx, positional, spring; found 'bullet'",
        ),
        ("jaxgcrl/ant", {"goal_distance": 0.1}, "a number from 1 to 100; found 0.1"),
        ("jaxgcrl/ant", {"goal_distance": "far"}, "a number from 1 to 100; found 'far'"),
        ("jaxgcrl/ant-u-maze", {"layout": 3}, "must be a name or rows of text; found 3"),
        ("jaxgcrl/ant", {"max_steps": 0}, "max_steps of jaxgcrl/ant must be a whole number of at least 1; found 0"),
        ("jaxgcrl/ant-u-maze", {"cell_size": 1.0}, "a number from 2 to 20; found 1.0"),
    ],
)
def test_other_bad_arguments_are_refused(name, arguments, message):
    with pytest.raises(gw.UserError, match=re.escape(message)):
        gw.make(name, **arguments)
