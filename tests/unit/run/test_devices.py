"""How seeds and environments are laid over devices; the tests have eight."""

import threading
from types import SimpleNamespace

import jax
import pytest

import goalward as gw
from goalward.backend import default_device
from goalward.errors import PartnerLost
from goalward.run.devices import layout, make_mesh, num_sharing, seeds_in_memory, seeds_on_host, start
from goalward.run.processes import acquaint, losses_explained
from goalward.shards import ENVS, SEEDS


@pytest.fixture
def free_choice(monkeypatch):
    monkeypatch.delenv("GOALWARD_DEVICES")


@pytest.mark.parametrize(
    ("num_seeds", "num_envs", "devices", "by_seeds", "by_envs"),
    [(8, 4, 8, 8, 1), (4, 4, 8, 4, 2), (1, 16, 8, 1, 8), (10, 4, 8, 2, 4), (6, 5, 3, 3, 1), (3, 4, 2, 1, 2)],
)
def test_seeds_are_split_first_and_environments_over_what_is_left(num_seeds, num_envs, devices, by_seeds, by_envs):
    mesh = make_mesh(num_seeds, num_envs, devices)

    assert dict(mesh.shape) == {SEEDS: by_seeds, ENVS: by_envs}
    assert mesh.devices.flatten().tolist() == jax.devices()[:devices]


@pytest.mark.usefixtures("free_choice")
@pytest.mark.parametrize(("num_seeds", "by_seeds"), [(8, 8), (10, 5), (4, 4), (9, 3), (16, 8), (7, 7)])
def test_left_to_itself_a_run_splits_seeds_alone(num_seeds, by_seeds):
    assert dict(make_mesh(num_seeds, 512).shape) == {SEEDS: by_seeds, ENVS: 1}


@pytest.mark.usefixtures("free_choice")
@pytest.mark.parametrize("num_seeds", [1, 11])
def test_seeds_that_cannot_be_divided_stay_on_one_device(num_seeds):
    assert make_mesh(num_seeds, 512) is None


def test_one_device_needs_no_mesh():
    assert make_mesh(8, 8, 1) is None


def test_a_device_that_the_user_has_chosen_is_enough_unless_more_are_asked_for():
    chosen = jax.devices()[3]
    with jax.default_device(chosen):
        assert make_mesh(8, 8) is None
        assert make_mesh(8, 8, 2) is not None
        assert default_device() is chosen
    with jax.default_device("cpu"):
        assert make_mesh(8, 8) is None
        assert default_device() is jax.devices("cpu")[0]
    assert default_device() is jax.devices()[0]


def test_the_environment_speaks_where_no_argument_does(monkeypatch):
    monkeypatch.setenv("GOALWARD_DEVICES", "2")

    assert make_mesh(8, 8).size == 2
    assert make_mesh(8, 8, 4).size == 4


@pytest.mark.parametrize("devices", [0, -1, 1.5, "two", True])
def test_what_is_no_number_of_devices_is_refused(devices, tmp_path):
    with pytest.raises(gw.UserError, match="devices must be a whole number of at least 1; found"):
        gw.train(preset="quick", devices=devices, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["0", "many", "-2"])
def test_so_is_a_variable_that_holds_none(text, monkeypatch):
    monkeypatch.setenv("GOALWARD_DEVICES", text)
    with pytest.raises(gw.UserError, match="GOALWARD_DEVICES must be a whole number of at least 1; found"):
        make_mesh(8, 8)


def test_a_variable_that_asks_for_too_many_is_named(monkeypatch):
    monkeypatch.setenv("GOALWARD_DEVICES", "9")
    with pytest.raises(gw.UserError, match="GOALWARD_DEVICES must be at most 8"):
        make_mesh(9, 8)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--devices", "9"],
            "at most 8, the number of cpu devices that there are; found 9. JAX_NUM_CPU_DEVICES=9, set before",
        ),
        (
            ["--devices", "8", "--seeds", "3", "--set", "num_envs=4"],
            "train 3 seeds in 1 group of 8, which cannot share the 4 environments (num_envs) of",
        ),
        (["--devices", "8", "--seeds", "3", "--set", "num_envs=4"], "Use 1, 2, 3, 4 or 6 devices, or other seeds"),
        (
            ["--devices", "8", "--seeds", "1", "--set", "num_envs=4"],
            "8 devices would train 1 seed in 1 group of 8, which",
        ),
        (["--devices", "1025"], "the number of cpu devices that there are; found 1025.\n"),  # no CPU has so many
    ],
)
def test_devices_that_do_not_fit_are_explained(goalward, tmp_path, options, sentence):
    code, out, err = goalward("train", "--preset", "quick", "--out", tmp_path / "run", *options)

    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("free_choice")
def test_processes_that_cannot_divide_the_work_are_told_so(monkeypatch):
    """Three of them with a device each, and nobody has said how many devices to take."""
    monkeypatch.setattr("jax.process_count", lambda: 3)
    monkeypatch.setattr("goalward.run.devices._of_processes", lambda kind: [[d] for d in jax.devices(kind)[:3]])
    with pytest.raises(gw.UserError) as caught:
        make_mesh(4, 64)

    assert str(caught.value) == (
        "The number of processes must divide the work: 3 devices would train 4 seeds in 1 group of 3, which cannot "
        "share the 64 environments (num_envs) of a seed evenly. Use another number of processes, seeds or environments."
    )
    assert make_mesh(6, 64).size == 3


@pytest.mark.usefixtures("free_choice")
def test_every_process_takes_part_with_as_many_devices_as_the_others(monkeypatch):
    """Two of them, with two devices and with four."""
    own = [jax.devices()[:2], jax.devices()[2:6]]
    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr("goalward.run.devices._of_processes", lambda kind: own)

    assert make_mesh(4, 64).devices.flatten().tolist() == [*own[0], *own[1][:2]]
    assert make_mesh(4, 64, 2).devices.flatten().tolist() == [own[0][0], own[1][0]]
    for devices in (5, 6):
        with pytest.raises(gw.UserError) as caught:
            make_mesh(4, 64, devices)
        assert str(caught.value) == (
            "devices must be a multiple of 2, the number of processes, and at most 4, since each takes part with as "
            f"many cpu devices as the one that has fewest (2); found {devices}."
        )


@pytest.mark.usefixtures("free_choice")
def test_joined_processes_need_devices_of_the_chosen_kind(monkeypatch):
    """As two with GPUs where CPUs were chosen, of which each process sees its own alone."""
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with jax.default_device(jax.devices()[0]), pytest.raises(gw.UserError) as caught:
        make_mesh(4, 64)

    assert str(caught.value) == (
        "Expected every process to have devices of the kind that was made JAX's default, cpu; number 1 shows none. "
        "Leave jax_default_device unset where processes are joined."
    )


def test_the_plan_is_said_in_words():
    assert layout(make_mesh(8, 4, 4), 8, 4) == "4 devices (cpu), 2 seeds on each."
    words = "8 devices (cpu), 1 seed on each; the 64 environments of a seed are split over 4."
    assert layout(make_mesh(2, 64, 8), 2, 64) == words


def test_devices_that_are_made_of_one_cpu_share_its_memory():
    both = make_mesh(2, 64, 8)

    assert (num_sharing(None), num_sharing(both)) == (1, 8)
    # Each of the two seeds is kept by four devices.
    assert (seeds_in_memory(None, 3), seeds_in_memory(both, 2)) == (3, 8)


def test_a_checkpoint_copies_what_is_not_the_hosts_already(monkeypatch):
    both = make_mesh(2, 64, 8)

    # One device of a CPU holds what it holds in the host's memory; of several the parts are put together in a copy.
    assert (seeds_on_host(None, 3), seeds_on_host(both, 2)) == (3, 8 + 2)
    monkeypatch.setattr("jax.local_devices", lambda **_: [SimpleNamespace(platform="gpu")])
    assert (seeds_on_host(None, 3), seeds_on_host(both, 2)) == (3, 2)


def test_a_gpu_is_used_for_the_first_time_beside_what_follows(monkeypatch):
    """Here a CPU is taken for one; what happens to it is not this function's business."""
    used = []

    def fail(value, device):
        used.append((device, threading.current_thread().daemon))
        raise RuntimeError("out of memory")

    monkeypatch.setattr("goalward.run.devices.is_gpu", lambda: True)
    monkeypatch.setattr("jax.device_put", fail)
    with jax.default_device(jax.devices()[3]):
        start()
    for thread in threading.enumerate():
        if thread.name == "first-use":
            thread.join()

    assert used == [(jax.devices()[3], False)]


@pytest.mark.parametrize(
    ("platforms", "sentences"),
    [
        (None, "JAX could not start; {}. Mend what it names, or set JAX_PLATFORMS=cpu to do without."),
        (
            "cuda",
            "JAX could not start with JAX_PLATFORMS=cuda; {}. Leave JAX_PLATFORMS unset to use what there is; for a "
            "GPU install goalward[cuda] and the driver of the device.",
        ),
    ],
)
@pytest.mark.parametrize("advice", ["you may need to uninstall the failing plugin package", "set JAX_PLATFORMS=''"])
def test_why_jax_does_not_start_is_said_without_its_own_advice(monkeypatch, platforms, sentences, advice):
    reason = "Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices"

    def fail():
        raise RuntimeError(f"{reason}. ({advice}, or ...)\nMore lines, for developers of JAX")

    stand_in = SimpleNamespace(devices=fail, config=SimpleNamespace(jax_platforms=platforms))
    monkeypatch.setattr("goalward.run.devices.jax", stand_in)
    with pytest.raises(gw.UserError) as caught:
        start()
    assert str(caught.value) == sentences.format(reason)


def test_a_process_whose_partner_does_not_start_is_told_to_look_there(monkeypatch):
    def fail():
        raise RuntimeError("Unable to initialize backend 'cpu': INTERNAL: Getting local topologies failed: Timed out")

    monkeypatch.setattr("jax.devices", fail)
    with pytest.raises(gw.UserError) as caught:
        start()
    assert str(caught.value) == "Expected all processes to start JAX; another did not in time, and says why."


def test_devices_of_several_processes_exchange_something_along_each_axis(monkeypatch):
    along, psum = [], jax.lax.psum

    def watched(x, axis):
        along.append(axis)
        return psum(x, axis)

    monkeypatch.setattr("jax.lax.psum", watched)
    mesh = make_mesh(2, 64, 8)
    acquaint(mesh)
    assert along == []  # of one process they know each other
    monkeypatch.setattr("goalward.run.processes.count", lambda: 2)
    acquaint(mesh)
    assert along == [SEEDS, ENVS]


@pytest.mark.parametrize(
    ("num_processes", "message", "kind"),
    [
        (2, "UNKNOWN: Gloo AllGather failed", PartnerLost),
        (1, "UNKNOWN: Gloo AllGather failed", jax.errors.JaxRuntimeError),
        (2, "INTERNAL: NCCL operation ncclAllGather failed: unhandled system error", PartnerLost),
        (2, "RESOURCE_EXHAUSTED: Out of memory", jax.errors.JaxRuntimeError),
        (2, "INTERNAL: NCCL operation ncclCommInitRank failed: out of memory", jax.errors.JaxRuntimeError),
    ],
)
def test_only_what_other_processes_cause_is_said_of_them(monkeypatch, num_processes, message, kind):
    monkeypatch.setattr("goalward.run.processes.count", lambda: num_processes)
    with pytest.raises(kind), losses_explained():
        raise jax.errors.JaxRuntimeError(message)
