"""benchmarks/throughput.py runs, in small, and writes what the tables read."""

import json

import jax
import kernels
import pytest
import tables
import throughput
from jax.experimental.compilation_cache import compilation_cache

import goalward as gw
from goalward.run.program import Program

SMALL = """
[cppo]
num_envs = 8
rollout_length = 8
batch_size = 16
hidden_sizes = [8]
num_epochs = 2

[run]
eval_episodes = 4
"""
NUM_SEEDS, STEPS = 2, 64


@pytest.fixture(scope="module", autouse=True)
def settings_of_tests():
    """What tests say to JAX, for processes that are started too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", jax.config.jax_compilation_cache_dir)
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
        patch.setenv("JAX_NUMPY_RANK_PROMOTION", "raise")
        yield


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The results of one small task."""
    folder = tmp_path_factory.mktemp("throughput")
    preset = folder / "small.toml"
    preset.write_text(SMALL)
    options = ["--preset", str(preset), "--seeds", str(NUM_SEEDS), "--repeats", "2", "--out", str(folder)]
    throughput.main(["toy/rooms", *options])
    return json.loads((folder / "toy-rooms-cppo-2-float32-small.json").read_text())


def test_speed_counts_the_steps_of_all_seeds(measured):
    assert measured["steps_per_second"] == pytest.approx(NUM_SEEDS * STEPS / measured["iteration_seconds"], abs=1)
    assert len(measured["steps_per_second_of_repeats"]) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["toy/room"], "Did you mean toy/rooms"),
        (["toy/rooms", "--preset", "quik"], "quik"),
        (["toy/rooms", "--seeds", "0"], "seeds must be"),
        (["toy/rooms", "--repeats", "0"], "--repeats to be at least 1; found 0"),
        (["toy/rooms", "--out", "/dev/null/results"], "Not a directory"),
        (["toy/rooms", "--profile", "/dev/null/profile"], "Not a directory"),
    ],
)
def test_mistakes_are_explained_before_anything_is_measured(options, sentence, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        throughput.main(["--out", str(tmp_path / "results"), *options])

    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_more_than_the_device_holds_is_explained_before_it_is_made(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        throughput.main(["toy/rooms", "--seeds", "1000000", "--out", str(tmp_path)])

    assert ended.value.code == 2
    assert "Training would keep" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_time_of_an_iteration_is_that_of_a_call_by_its_iterations(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("throughput.time.perf_counter", lambda: clock[0])

    def advance(states, num_iterations):
        clock[0] += 0.5 * int(num_iterations)
        return states + int(num_iterations), {}

    assert throughput.seconds_of_iterations(advance, 0, 2) == (9, [0.5, 0.5])


@pytest.mark.parametrize(("order", "times"), [("after_critic", 2), ("before_critic", 1)])
def test_phases_count_as_often_as_they_come(monkeypatch, order, times):
    """Of two epochs each has a pass of the critic and of the policy, and advantages of its own or none."""
    env = gw.make("toy/rooms")
    settings = {"num_envs": 8, "rollout_length": 8, "batch_size": 16, "hidden_sizes": (8,), "num_epochs": 2}
    learner = gw.CPPO(**settings, advantage_order=order).bind(env, 1)
    monkeypatch.setattr("throughput.call_seconds", lambda call, repeats: [1.0] * repeats)
    program = Program(learner, range(NUM_SEEDS))
    phases = throughput.seconds_by_phase(program, learner, program.init(), repeats=1)

    assert phases == {"rollout": 1.0, "critic": 2.0, "advantages": times, "policy": 2.0}


def test_the_phases_and_the_rest_are_the_iteration(measured):
    phases = dict(measured["phases"])
    rest = phases.pop("rest")

    assert list(phases) == list(measured["floor"]["phases"])
    assert all(seconds > 0.0 for seconds in phases.values())
    assert sum(phases.values()) + rest == pytest.approx(measured["iteration_seconds"])


def test_what_else_is_measured(measured):
    settings = {key: measured[key] for key in ("task", "algo", "seeds", "precision", "evaluation_episodes", "device")}

    assert settings == {
        "task": "toy/rooms",
        "algo": "cppo",
        "seeds": NUM_SEEDS,
        "precision": "float32",
        "evaluation_episodes": 4,
        "device": jax.devices()[0].device_kind,
    }
    assert measured["versions"]["goalward"] == gw.__version__
    assert measured["compile_seconds"] > 0.0
    assert measured["evaluation_seconds"] > 0.0
    assert measured["peak_bytes"] > 0
    assert measured["fraction_of_floor"] == pytest.approx(
        measured["steps_per_second"] / measured["floor"]["floor_steps_per_second"], rel=1e-3
    )


def test_a_method_that_does_not_suit_the_task_is_explained(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        throughput.main(["toy/rooms", "--algo", "csac", "--out", str(tmp_path)])

    assert ended.value.code == 2
    assert "csac trains continuous actions" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_method_without_a_floor_leaves_those_cells_empty(measured):
    other = measured | {"algo": "another", "phases": {}, "floor": {}, "fraction_of_floor": None, "peak_bytes": None}
    *_, first, second = tables.throughput([measured, other]).splitlines()

    assert first.startswith("| `toy/rooms` | another |")
    assert first.count("%") == 0
    assert second.count("%") == 6
    assert f"| {measured['evaluation_seconds']:.2f} s |" in second
    assert tables.throughput([]).count("\n") == 1  # before there are results: the head alone


def test_a_brief_measurement_has_a_speed_and_no_phases(measured, tmp_path):
    preset = tmp_path / "small.toml"
    preset.write_text(SMALL)
    throughput.main(["toy/rooms", "--preset", str(preset), "--repeats", "1", "--brief", "--out", str(tmp_path)])
    brief = json.loads((tmp_path / "toy-rooms-cppo-10-float32-small.json").read_text())

    assert set(measured) - set(brief) == {"evaluation_seconds", "evaluation_episodes"}
    assert brief["phases"] == {}
    row = tables.throughput([brief]).splitlines()[-1]
    assert row.count("%") == 1  # of the floor
    assert row.count("|  |") == 1  # neither phases nor an evaluation, side by side


def test_kernels_are_shown_where_they_were_measured(measured):
    profile = {"seconds": 2.0, "count": 4000, "iterations": 2, "idle_share": 0.125, "kinds": {"products": 0.5}}

    (shown,) = tables.kernels([measured, measured | {"kernels": profile}]).splitlines()[2:]
    assert shown == "| `toy/rooms` | 2 | 2,000 | 250.0 µs | 50% | 0% | 0% | 0% | 12% |"


@pytest.fixture
def empty_cache(tmp_path):
    """A folder in which JAX keeps whatever it compiles from now on."""
    wanted = {"jax_compilation_cache_dir": str(tmp_path), "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in wanted}
    for settings in (wanted, before):
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if settings is wanted:
            yield tmp_path


def test_a_timed_compilation_neither_reads_nor_fills_the_cache(empty_cache):
    def compile_anew():
        jax.jit(lambda x: x + 1).lower(1.0).compile()

    with throughput.nothing_cached():
        compile_anew()
    assert not any(empty_cache.iterdir())

    compile_anew()
    assert any(empty_cache.iterdir())


@pytest.fixture
def trace(tmp_path):
    """Two streams of a GPU, a line that repeats them, and the host: times in nanoseconds."""
    names = ["gemm", "norm", "copy", "dot", "python"]

    def plane(name, **lines):
        written = "".join(line(text, events) for text, events in lines.items())
        known = "".join(f'event_metadata {{ key: {i} value {{ id: {i} name: "{n}" }} }}' for i, n in enumerate(names))
        return f'planes {{ name: "{name}" {written} {known} }}'

    def line(name, events):
        written = "".join(
            f"events {{ metadata_id: {names.index(name)} offset_ps: {1000 * start} duration_ps: {1000 * duration} }}"
            for name, start, duration in events
        )
        return f'lines {{ name: "{name}" {written} }}'

    streams = {
        "Stream #13(Compute)": [("gemm", 100, 30), ("norm", 140, 10), ("gemm", 170, 30)],
        "Stream #14(MemcpyD2D)": [("copy", 120, 20)],
    }
    text = plane("/device:GPU:0", **streams, **{"XLA Ops": [("dot", 100, 100)]})
    text += plane("/host:CPU", **{"Stream #13": [("python", 0, 500)]})
    path = tmp_path / "plugins" / "profile" / "now" / "host.xplane.pb"
    path.parent.mkdir(parents=True)
    path.write_bytes(jax.profiler.ProfileData.text_proto_to_serialized_xspace(text))
    return tmp_path


def test_kernels_are_summed_by_name_and_gaps_between_them_found(trace):
    found = kernels.busiest_kernels(trace, most=2)

    assert found["seconds"] == pytest.approx(100e-9)
    assert found["idle_share"] == pytest.approx(0.2)  # from 150 to 170
    assert [(k["name"], k["count"]) for k in found["top"]] == [("gemm", 2), ("copy", 1)]
    assert [k["share"] for k in found["top"]] == pytest.approx([0.6, 0.2])
    assert found["kinds"] == pytest.approx({"products": 0.6, "all else": 0.3})
    assert found["count"] == 4


def test_a_kernel_within_another_does_not_end_the_time_in_which_something_runs():
    spans = [(0, 50), (10, 20), (30, 60), (80, 90)]

    assert kernels.covered([kernels.Kernel("kernel", start, end) for start, end in spans]) == 60 + 10


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_128x128", "products"),
        ("gemm_fusion_dot_29", "products"),
        ("_backward_kernel__1", "norm and activation"),
        ("MemcpyD2D", "copies"),
        ("loop_add_fusion", "all else"),
    ],
)
def test_kernels_are_told_apart_by_their_names(name, kind):
    assert kernels.kind_of(name) == kind


def test_kernels_ask_for_a_trace(tmp_path):
    with pytest.raises(SystemExit, match="found none"):
        kernels.busiest_kernels(tmp_path)
