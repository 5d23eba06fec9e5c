"""Two processes with a device each train one run together."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from statistics import mean

import pytest
from exact_runs import SETTINGS, as_options, assert_same_run

from goalward.run.load import load_all

QUICK = ["--preset", "quick", "--seeds", "2", "--out", "run"]
SHORT = SETTINGS | {"seeds": 2, "steps": 4 * 32}
SMALL = [*QUICK, *as_options(SHORT)]  # one program, compiled once for all tests
FULL = "jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: 9 GB')"
COMMAND = """
{patch}
from goalward.cli import entry
entry()
"""


@pytest.fixture
def start(tmp_path, environment):
    """Returns a function that starts both processes, given the options of each; they are ended with the test.

    `patches` is Python that runs in each before anything else.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    started = []

    def both(*options_of_each, patches=("", ""), in_earnest=False):
        variables = environment | {"JAX_NUM_CPU_DEVICES": "1"}
        del variables["GOALWARD_DEVICES"]
        if in_earnest:  # as fast as they can, unlike what is compiled for a few iterations
            del variables["XLA_FLAGS"]
        for number, (options, patch) in enumerate(zip(options_of_each, patches, strict=True)):
            command = [sys.executable, "-c", COMMAND.format(patch=patch), "train", *options]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started.append(
                subprocess.Popen([*command, "--join", f"{address},{number},2"], cwd=tmp_path, env=variables, **pipes)
            )
        return started[-2:]

    yield both
    for process in started:
        process.kill()
        process.communicate()


def ended(processes, seconds):
    """Returns (exit code, output, errors) of each process."""
    shown = [process.communicate(timeout=seconds) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, shown, strict=True)]


def slow(*case):
    """A case that differs from an ordinary one only in which process it happens to, or in the kind of signal."""
    return pytest.param(*case, marks=pytest.mark.slow)


def said(text):
    """Returns what a process said without the library that connects them."""
    return [line for line in text.splitlines() if "[Gloo]" not in line]


def test_what_they_save_is_where_they_go_on(start, tmp_path):
    """Bit for bit, however the parts that each of them holds are gathered for a checkpoint."""
    row_by_row = "import goalward.run.processes as processes; processes._MOST_BYTES_GATHERED = 0"
    whole = ended(start(SMALL, SMALL, patches=[row_by_row] * 2), 300)
    assert [code for code, _, _ in whole] == [0, 0], whole
    assert "All processes are here.\n" in whole[0][1]
    assert "2 devices (cpu), 1 seed on each." in whole[0][1]
    assert said(whole[1][1]) == []

    shutil.copytree(tmp_path / "run", tmp_path / "part")
    (tmp_path / "part" / "results.json").unlink()
    shutil.rmtree(tmp_path / "part" / "checkpoints" / "4")
    resumed = ["--resume", "part"]
    part = ended(start(resumed, resumed), 300)
    assert [code for code, _, _ in part] == [0, 0], part
    assert "Going on after iteration 2 of 4." in part[0][1]
    assert_same_run(tmp_path / "part", tmp_path / "run")


def test_the_clock_of_the_first_decides_for_all_whether_to_save(start, tmp_path):
    """By its own, which stands still, the second would always save, and wait for the first."""
    rarely = [*QUICK, *as_options(SHORT | {"checkpoint_share": 0.0})]
    still = (
        "from types import SimpleNamespace; import goalward.run.loop as loop; "
        "loop.time = SimpleNamespace(perf_counter=lambda: 0.0)"
    )
    results = ended(start(rarely, rarely, patches=["", still]), 120)

    assert [code for code, _, _ in results] == [0, 0], results
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["0", "4"]


def test_they_train_with_as_many_devices_as_the_one_that_has_fewest(start, tmp_path):
    more = "import os; os.environ['JAX_NUM_CPU_DEVICES'] = '3'"
    results = ended(start(SMALL, SMALL, patches=["", more]), 300)

    assert [code for code, _, _ in results] == [0, 0], results
    assert "2 devices (cpu), 1 seed on each." in results[0][1]


@pytest.mark.parametrize("number", [0, 1])
def test_ctrl_c_while_jax_joins_them_stops_both(start, tmp_path, number):
    """The signal comes between their meeting and their first exchange, when others would wait for whoever leaves."""
    interrupt = """
import os, signal, jax
def interrupted(*args, join=jax.distributed.initialize, **kwargs):
    os.kill(os.getpid(), signal.SIGINT)
    join(*args, **kwargs)
jax.distributed.initialize = interrupted
"""
    patches = ["", ""]
    patches[number] = interrupt
    results = ended(start(SMALL, SMALL, patches=patches), 60)

    assert [(code, said(errors)) for code, _, errors in results] == [(130, ["goalward: Interrupted."])] * 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("number", "exchange", "name"),
    [
        (0, 3, "SIGINT"),
        (1, 5, "SIGTERM"),
        (0, 8, "SIGTERM"),
        (1, 20, "SIGINT"),
        slow(1, 3, "SIGINT"),
        slow(0, 5, "SIGTERM"),
        slow(1, 8, "SIGINT"),
        slow(0, 12, "SIGTERM"),
        slow(1, 12, "SIGTERM"),
    ],
)
def test_a_signal_before_they_train_stops_both(start, number, exchange, name):
    """It comes while one of them waits for the others, from one exchange after the next."""
    interrupt = f"""
import os, signal, goalward.run.processes as module
count = 0
def interrupted(*args, exchanged=module._exchanged):
    global count
    count += 1
    if count == {exchange}:
        os.kill(os.getpid(), signal.{name})
    return exchanged(*args)
module._exchanged = interrupted
"""
    patches = ["", ""]
    patches[number] = interrupt
    results = ended(start(SMALL, SMALL, patches=patches), 100)

    assert [code for code, _, _ in results] == [130, 130], results


def test_a_process_that_is_gone_is_missed_with_a_sentence(start):
    leave = """
import os, goalward.run.processes as module
count = 0
def gone(*args, exchanged=module._exchanged):
    global count
    count += 1
    if count == 8:
        os._exit(9)
    return exchanged(*args)
module._exchanged = gone
"""
    (code, _, errors), (left, _, _) = ended(start(SMALL, SMALL, patches=["", leave]), 60)

    assert (code, left) == (1, 9)
    assert re.fullmatch(r"goalward: Expected the other processes to answer; one is gone\. .*\n", errors)
    assert "--resume" not in errors  # nothing has begun


def test_so_is_one_that_leaves_while_they_train(start, tmp_path):
    leave = """
import os, goalward.run.loop as module
def gone(*args):
    os._exit(9)
module.Training._iterate = gone
"""
    (code, _, errors), (left, _, _) = ended(start(SMALL, SMALL, patches=["", leave]), 60)

    assert (code, left) == (1, 9)
    assert "goalward: Expected the other processes to answer; one is gone." in errors
    assert errors.endswith("Go on from the last checkpoint with: goalward train --resume run\n")
    assert "Traceback" not in errors
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("number", "error", "code", "sentence"),
    [
        (0, "TypeError('a bug')", 1, "TypeError: a bug\n"),
        (1, FULL, 2, "goalward: The device has too little memory"),
        slow(1, "TypeError('a bug')", 1, "TypeError: a bug\n"),
        slow(0, FULL, 2, "goalward: The device has too little memory"),
    ],
)
def test_one_that_fails_while_they_train_says_why_and_the_other_misses_it(start, number, error, code, sentence):
    """Both end soon, and not when JAX gives up waiting for them to part, after five minutes."""
    fail = f"""
import jax, goalward.run.loop as module
def failing(*args):
    raise {error}
module.Training._iterate = failing
"""
    patches = ["", ""]
    patches[number] = fail
    results = ended(start(SMALL, SMALL, patches=patches), 60)
    (own_code, _, own_errors), (other_code, _, other_errors) = results[number], results[1 - number]

    assert (own_code, other_code) == (code, 1), results
    assert sentence in own_errors
    assert "goalward: Expected the other processes to answer; one is gone." in other_errors
    assert "Traceback" not in other_errors


def test_their_devices_are_acquainted_before_they_compile(start):
    """What that is good for takes half a minute to see, in a test that is slow."""
    refuse = """
import goalward.run.train as module
from goalward import UserError
def refused(mesh):
    raise UserError(f"{mesh.size} devices")
module.acquaint = refused
"""
    for code, _, errors in ended(start(SMALL, SMALL, patches=[refuse] * 2), 60):
        assert (code, said(errors)) == (2, ["goalward: 2 devices"])


def test_termination_while_one_waits_is_an_interruption_too(start):
    first, _ = processes = start(SMALL, SMALL, patches=["", "import time; time.sleep(60)"])
    for line in first.stdout:
        if line.startswith("Waiting at"):
            first.send_signal(signal.SIGTERM)
            break
    ((code, _, errors),) = ended(processes[:1], 30)

    assert (code, errors) == (130, "goalward: Interrupted.\n")


def test_an_interruption_of_what_the_first_does_for_all_stops_both(start):
    """As a second Ctrl-C does, which is not put off."""
    interrupt = """
from goalward.run.directory import RunDirectory
def interrupted(*args):
    raise KeyboardInterrupt
RunDirectory.create = interrupted
"""
    results = ended(start(SMALL, SMALL, patches=[interrupt, ""]), 60)

    assert [(code, said(errors)) for code, _, errors in results] == [(130, ["goalward: Interrupted."])] * 2


def test_so_does_one_of_what_each_does_for_itself(start):
    interrupt = """
import goalward.run.train as module
def interrupted(*args, **kwargs):
    raise KeyboardInterrupt
module.make = interrupted
"""
    results = ended(start(SMALL, SMALL, patches=["", interrupt]), 60)

    assert [(code, said(errors)) for code, _, errors in results] == [(130, ["goalward: Interrupted."])] * 2


def test_the_first_waits_for_one_that_is_slow_to_leave(start):
    """JAX would end it without a sentence."""
    interrupt = """
import time, goalward.cli as cli, goalward.run.train as module
def interrupted(*args, **kwargs):
    raise KeyboardInterrupt
def after_a_while(text, complain=cli._complain):
    time.sleep(5)
    complain(text)
module.make, cli._complain = interrupted, after_a_while
"""
    not_long = "import goalward.cli as cli; cli._SECONDS_TO_TAKE_LEAVE = 1"  # after a failure, which this is not
    results = ended(start(SMALL, SMALL, patches=[not_long, interrupt]), 60)

    assert [(code, said(errors)) for code, _, errors in results] == [(130, ["goalward: Interrupted."])] * 2


def test_a_device_that_both_lack_is_named(start, tmp_path):
    lacking = "import os; os.environ['JAX_PLATFORMS'] = 'abacus'"
    for code, _, errors in ended(start(SMALL, SMALL, patches=[lacking] * 2), 60):
        assert code == 2
        assert "JAX could not start with JAX_PLATFORMS=abacus; Unable to initialize backend" in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (["--preset", "quick", "--seeds", "4", "--out", "run"], "The first has 'seeds = 2', this one 'seeds = 4'."),
        (["--preset", "quick", "--seeds", "2", "--out", "walk"], "The first has 'out run', this one 'out walk'."),
        (["--resume", "run"], "The first has 'train', this one 'resume'."),
    ],
)
def test_processes_that_were_told_different_things_are_refused(start, tmp_path, other, difference):
    (code, _, errors), (other_code, _, other_errors) = ended(start(QUICK, other), 120)
    sentence = "goalward: Expected all processes of a run to be given the same command; found another in number 1."

    assert (code, other_code) == (2, 2)
    assert (said(errors), said(other_errors)) == ([sentence], [f"{sentence} {difference}"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("mistake", "sentence"), [(["toy/roms"], "Unknown task 'toy/roms'"), (["--goal", "none"], "Unknown goal")]
)
def test_a_mistake_of_one_ends_both_at_once(start, tmp_path, mistake, sentence):
    (code, _, errors), (other_code, _, other_errors) = ended(start(QUICK, [*mistake, *QUICK]), 60)

    assert (code, other_code) == (2, 2)
    assert "Expected all processes to begin; number 1 did not, and says why." in errors
    assert sentence in other_errors
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("step", ["require_memory", "require_memory_of"])
def test_too_little_memory_in_one_ends_both(start, tmp_path, step):
    module = {"require_memory": "goalward.run.train", "require_memory_of": "goalward.run.loop"}[step]
    patch = f"""
import {module} as module, goalward.run.memory as memory
def with_little(*args, before=module.{step}, **kwargs):
    memory.device_memory = lambda: 1000
    before(*args, **kwargs)
module.{step} = with_little
"""
    (code, _, errors), (other_code, _, other_errors) = ended(start(SMALL, SMALL, patches=["", patch]), 120)

    assert (code, other_code) == (2, 2)
    assert "number 1 did not, and says why." in errors
    assert "Training would keep" in other_errors
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["goalward.run.train.make", "goalward.run.loop.Training._evaluate"])
def test_they_wait_for_one_that_is_slow_to_begin(start, step):
    """Longer than the half minute after which devices that have never exchanged anything give each other up."""
    delay = f"""
import pkgutil, time, goalward.run.train
owner, name = pkgutil.resolve_name("{step.rpartition(".")[0]}"), "{step.rpartition(".")[2]}"
def after_a_while(*args, waited=[], do=getattr(owner, name), **kwargs):
    if not waited:
        waited.append(time.sleep(40))
    return do(*args, **kwargs)
setattr(owner, name, after_a_while)
"""
    two_devices = "import os; os.environ['JAX_NUM_CPU_DEVICES'] = '2'"
    options = ["--preset", "quick", "--seeds", "2", "--out", "run", "--devices", "4", "--steps", "512"]
    results = ended(start(options, options, patches=[two_devices, two_devices + delay]), 300)
    assert [code for code, _, _ in results] == [0, 0], results
    assert "split over 2" in results[0][1]


@pytest.mark.slow
def test_they_learn_the_default_task(start, tmp_path):
    options = ["toy/rooms", "--seeds", "4", "--out", "run"]
    (code, out, _), (other_code, other_out, _) = ended(start(options, options, in_earnest=True), 1800)

    assert (code, other_code) == (0, 0)
    assert "2 devices (cpu), 2 seeds on each." in out
    assert said(other_out) == []
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if record["iteration"] == records[-1]["iteration"]]
    assert [record["seed"] for record in last] == [0, 1, 2, 3]
    assert mean(record["win_rate"] for record in last) >= 0.90
    assert (tmp_path / "run" / "results.json").is_file()
    assert (tmp_path / "run" / "media" / "episodes.gif").is_file()


@pytest.mark.slow
def test_ctrl_c_in_one_stops_both_and_either_number_goes_on(start, tmp_path):
    options = [*QUICK, "--steps", "2_000_000", "--set", "num_evaluations=2"]
    first, second = processes = start(options, options, in_earnest=True)
    for line in first.stdout:
        if re.match(r"step +0 ", line):
            second.send_signal(signal.SIGINT)
            break
    results = ended(processes, 300)

    stopped = [re.search(r"Stopped after iteration (\d+); everything is saved", errors) for _, _, errors in results]
    assert [code for code, _, _ in results] == [130, 130]
    assert stopped[0][1] == stopped[1][1]
    assert (tmp_path / "run" / "checkpoints" / stopped[0][1]).is_dir()
    assert [policy.seed for policy in load_all(tmp_path / "run")[1]] == [0, 1]

    resumed = ["--resume", "run"]
    first, second = start(resumed, resumed, in_earnest=True)
    for line in first.stdout:
        if f"Going on after iteration {int(stopped[0][1]):,}" in line:
            first.send_signal(signal.SIGINT)
            break
    results = ended([first, second], 300)
    again = [re.search(r"Stopped after iteration (\d+)", errors)[1] for _, _, errors in results]
    assert again[0] == again[1]
    assert int(again[0]) >= int(stopped[0][1])
