"""Sizes beyond what arrays, counters and memories can hold."""

import weakref
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace

import jax
import pytest

import goalward as gw
from goalward.data.rollout import start_episodes
from goalward.run import memory
from goalward.run.config import make_plan
from goalward.run.devices import make_mesh
from goalward.run.directory import RunDirectory
from goalward.run.loop import Training
from goalward.run.memory import memory_explained, require_memory, require_memory_for_checkpoints, require_memory_of
from goalward.run.program import Program
from goalward.run.state import first_state
from goalward.run.train import train_together


def small_program(num_seeds, mesh=None):
    env = gw.make("toy/rooms")
    learner = gw.CPPO(num_envs=4, rollout_length=4, batch_size=4, hidden_sizes=(8,)).bind(env, 1)
    return Program(learner, range(num_seeds), mesh)


@pytest.mark.parametrize(("num_envs", "rollout_length"), [(10**9, 128), (2**31, 1), (1, 2**31), (10**30, 10**30)])
def test_an_iteration_of_too_many_steps_is_refused(num_envs, rollout_length):
    with pytest.raises(gw.UserError, match=r"num_envs x rollout_length must be at most 2\^31 - 1 = 2147483647"):
        gw.CPPO(num_envs=num_envs, rollout_length=rollout_length)


def test_the_command_line_refuses_them_too(goalward, tmp_path):
    settings = ["--set", "num_envs=1000000000", "--steps", "1e12"]
    code, out, err = goalward("train", "toy/rooms", "--out", tmp_path / "run", *settings)

    assert (code, out) == (2, "")
    assert "num_envs x rollout_length" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (["seeds=4_000_000_000"], "Training would keep"),
        (["num_envs=200_000_000", "rollout_length=2", "batch_size=2_000", "steps=400_000_000"], "Training would"),
        (["hidden_sizes=[10_000_000, 10_000_000]"], "smaller networks"),
        (["eval_episodes=1_000_000_000_000"], "An evaluation would keep"),
        (["eval_episodes=1_000_000_000", "absolute_factor=1_000"], "absolute_factor times as many"),
    ],
)
def test_a_run_that_is_larger_than_the_machine_is_refused_before_it_begins(goalward, tmp_path, settings, what):
    code, out, err = goalward("train", "--preset", "quick", "--out", tmp_path / "run", "--set", *settings)

    assert (code, out) == (2, "")
    assert what in err
    assert "GB; use fewer" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_what_writing_a_checkpoint_takes_of_the_machine_counts(monkeypatch):
    program = small_program(num_seeds=3)
    state = first_state(small_program(num_seeds=1))
    kept = sum(x.nbytes for x in jax.tree.leaves((state.learner, state.best)))

    # Two seeds in training, and one of them is written: copied, and compressed.
    monkeypatch.setattr(memory, "host_memory", lambda: 4 * kept)
    require_memory_for_checkpoints(program, num_on_host=2, num_written=1)
    monkeypatch.setattr(memory, "host_memory", lambda: 4 * kept - 1)
    with pytest.raises(gw.UserError, match=r"Training and its checkpoints would keep .* and the machine has"):
        require_memory_for_checkpoints(program, num_on_host=2, num_written=1)


def test_the_episodes_of_an_evaluation_are_reckoned_from_those_of_training(monkeypatch):
    """As many bytes as the episodes themselves have."""
    program = small_program(num_seeds=2)
    needed = sum(x.nbytes for x in jax.tree.leaves(start_episodes(program.learner.env, jax.random.key(0), 3 * 10_000)))

    monkeypatch.setattr(memory, "device_memory", lambda: needed)
    require_memory(program, num_seeds=3, num_episodes=10_000)
    monkeypatch.setattr(memory, "device_memory", lambda: needed - 1)
    with pytest.raises(gw.UserError, match="An evaluation would keep"):
        require_memory(program, num_seeds=3, num_episodes=10_000)


@pytest.mark.parametrize("devices", [1, 4])
def test_the_first_state_is_traced_once_to_reckon_and_to_begin(monkeypatch, devices):
    """A simulator's reset may take a second to trace."""
    program = small_program(num_seeds=4, mesh=make_mesh(4, 4, devices))
    learner, traced = program.learner, []
    monkeypatch.setattr(learner, "init", lambda key, init=learner.init: traced.append(key) or init(key))

    require_memory(program, num_seeds=4, num_episodes=1)
    require_memory_for_checkpoints(program, num_on_host=1, num_written=1)
    state = program.init()
    assert len(traced) == 1
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), program.shapes()
    )


def test_the_memory_is_that_of_the_device_that_computes(monkeypatch):
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 123})
    monkeypatch.setattr(memory, "default_device", lambda: device)

    assert memory.device_memory() == 123


@pytest.mark.parametrize("is_enough", [True, False])
def test_a_run_whose_checkpoints_are_too_large_for_the_machine_is_refused(tmp_path, monkeypatch, is_enough):
    """Two seeds on one device: what they keep, and twice as much to write it."""
    kept = []

    def bytes_of_host():
        return 3 * sum(kept) - (0 if is_enough else 1)

    def counted(program, count=memory._bytes_kept):
        kept[:] = 2 * [count(program)]
        return kept[0]

    settings = {"num_evaluations": 1, "eval_episodes": 1, "render_episodes": 0}
    monkeypatch.setattr(memory, "device_memory", lambda: 10**12)
    monkeypatch.setattr(memory, "_bytes_kept", counted)
    monkeypatch.setattr(memory, "host_memory", bytes_of_host)
    expected = nullcontext() if is_enough else pytest.raises(gw.UserError, match="Training and its checkpoints would")
    with expected:
        gw.train(preset="quick", seeds=2, steps=512, settings=settings, devices=1, out=tmp_path / "run")
    assert (tmp_path / "run").exists() == is_enough


@pytest.mark.parametrize(
    ("num_runs", "devices", "on_host"),
    # Several devices of a CPU hold every seed once, and all are put together in a copy.
    [(1, 1, 2), (1, 2, 2 + 2), (3, 1, 6), (3, 2, 6 + 6)],
)
def test_checkpoints_are_reckoned_for_all_seeds_and_written_run_by_run(
    tmp_path, monkeypatch, num_runs, devices, on_host
):
    def reckon(program, **counts):
        assert counts == {"num_on_host": on_host, "num_written": 2}
        raise gw.UserError("That is all.")

    monkeypatch.setattr("goalward.run.train.require_memory_for_checkpoints", reckon)
    plan = make_plan(task="toy/rooms", preset="quick", run={"seeds": 2})
    with pytest.raises(gw.UserError, match="That is all"):
        train_together([(plan, tmp_path / str(i)) for i in range(num_runs)], devices=devices)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_written_when_the_best_parameters_of_before_are_gone(tmp_path, monkeypatch):
    """Not a moment earlier, when the device would hold them twice."""
    of_before, num_saved = [], 0

    def evaluate(self, state, evaluate=Training._evaluate):
        if self.evaluated:  # those of the first evaluation are the parameters themselves
            of_before[:] = [weakref.ref(x) for x in jax.tree.leaves(state.best)]
        return evaluate(self, state)

    def save(self, state, save=Training._save):
        nonlocal num_saved
        assert not any(array() is not None for array in of_before)
        num_saved += bool(of_before)
        save(self, state)

    monkeypatch.setattr(Training, "_evaluate", evaluate)
    monkeypatch.setattr(Training, "_save", save)
    settings = {"num_evaluations": 3, "eval_episodes": 1, "render_episodes": 0, "checkpoint_share": 1.0}
    gw.train(preset="quick", seeds=2, steps=1024, settings=settings, out=tmp_path / "run")
    assert num_saved == 2


def test_the_best_parameters_so_far_are_counted_with_the_training_program(tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr("goalward.run.loop.require_memory_of", lambda _, best, *args, **kwargs: counted.append(best))
    run = gw.train(preset="quick", seeds=2, steps=512, settings={"render_episodes": 0}, out=tmp_path / "run")

    shapes = [x.shape[1:] for x in jax.tree.leaves(counted)]
    assert shapes == [x.shape for x in jax.tree.leaves(run.policies[0].params)]


def test_what_is_kept_beside_the_training_program_counts(monkeypatch):
    learner = small_program(num_seeds=1).learner
    program = jax.jit(lambda x: x + 1).lower(jax.numpy.zeros(1000)).compile()
    analysis, best = program.memory_analysis(), {"kernel": jax.numpy.zeros(500)}
    needed = 2 * (4000 + 4000 + analysis.temp_size_in_bytes + 2000)

    monkeypatch.setattr(memory, "device_memory", lambda: needed)
    require_memory_of(program, best, learner, num_devices=2)
    monkeypatch.setattr(memory, "device_memory", lambda: needed - 1)
    with pytest.raises(gw.UserError, match="Training would keep"):
        require_memory_of(program, best, learner, num_devices=2)


@pytest.mark.parametrize("message", ["RESOURCE_EXHAUSTED: 9 GB", "INTERNAL: Out of memory allocating 9 bytes"])
def test_a_device_that_runs_out_of_memory_is_explained(message):
    with pytest.raises(gw.UserError, match="too little memory for this; use fewer seeds"), memory_explained():
        raise jax.errors.JaxRuntimeError(message)


def test_other_failures_of_the_device_stay_what_they_are():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL: launch failed"), memory_explained():
        raise jax.errors.JaxRuntimeError("INTERNAL: launch failed")


def test_a_container_may_have_less_memory_than_its_machine(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_LIMIT_OF_CONTAINER", limit)
    machine = memory.device_memory()
    limit.write_text("1000000\n")
    assert memory.device_memory() == 1_000_000
    limit.write_text("max\n")
    assert memory.device_memory() == machine > 1_000_000


def test_a_run_that_fails_before_its_first_checkpoint_leaves_nothing_behind(tmp_path, monkeypatch):
    def run(training):
        raise gw.UserError("The device has too little memory for this.")

    monkeypatch.setattr(Training, "run", run)
    with pytest.raises(gw.UserError, match="too little memory"):
        gw.train(preset="quick", out=tmp_path / "deep" / "run")
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_could_not_be_written_is_none(tmp_path, monkeypatch):
    def run(training):
        (training.members[0].directory.checkpoints / "0.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
        raise gw.GoalwardError("The disk is full.")

    monkeypatch.setattr(Training, "run", run)
    with pytest.raises(gw.GoalwardError, match="disk is full"):
        gw.train(preset="quick", out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_runs_that_cannot_all_begin_leave_nothing_behind(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").touch()
    plan = make_plan(task="toy/rooms", preset="quick", settings={"steps": 512})
    with pytest.raises(gw.UserError, match="theirs' is in use"):
        train_together([(plan, tmp_path / "ours"), (plan, tmp_path / "theirs")])

    assert [path.name for path in tmp_path.rglob("*")] == ["theirs", "notes.txt"]


def test_so_do_runs_of_which_another_process_writes_one(tmp_path):
    plan = make_plan(task="toy/rooms", preset="quick", settings={"steps": 512})
    held = RunDirectory.create(tmp_path / "held", plan.for_env(gw.make("toy/rooms")), "toy/rooms")
    with held.locked(), pytest.raises(gw.UserError, match="Another process"):
        train_together([(plan, tmp_path / "new"), (plan, tmp_path / "held")])

    assert [path.name for path in tmp_path.iterdir()] == ["held"]


def test_what_belongs_to_the_user_is_never_removed(tmp_path, monkeypatch):
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.mkdir()
    link.symlink_to(mine)

    def run(training):
        (training.members[0].directory.path / "notes.txt").write_text("mine")
        (training.members[0].directory.path / "checkpoints").mkdir(exist_ok=True)
        raise gw.UserError("The device has too little memory for this.")

    monkeypatch.setattr(Training, "run", run)
    with pytest.raises(gw.UserError, match="too little memory"):
        gw.train(preset="quick", out=link)
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]


def test_a_run_that_another_process_holds_is_left_alone(tmp_path, monkeypatch):
    with ExitStack() as held:

        def create_and_lose(*args, create=RunDirectory.create):
            made = create(*args)
            held.enter_context(RunDirectory(made.path).locked())
            return made

        monkeypatch.setattr(RunDirectory, "create", create_and_lose)
        with pytest.raises(gw.UserError, match="Another process"):
            gw.train(preset="quick", out=tmp_path / "run")

    assert (tmp_path / "run" / "config.toml").is_file()


def test_rollouts_that_no_device_could_hold_are_found_once_they_are_known(tmp_path):
    settings = {"num_envs": 16, "rollout_length": 100_000_000, "num_evaluations": 1}
    with pytest.raises(gw.UserError, match=r"Training would keep .* GB; use fewer .* shorter rollouts"):
        gw.train(preset="quick", steps=1_600_000_000, settings=settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_episode_longer_than_can_be_counted_is_refused():
    with pytest.raises(gw.UserError, match="max_steps of toy/rooms must be at most 2147483647; found 99999999999"):
        gw.make("toy/rooms", max_steps=99_999_999_999)
