"""A second Ctrl-C ends a command while the device computes, when Python hears no signal."""

import re
import signal
import subprocess
import sys
import time

import pytest

ENDLESS = """
import goalward as gw
import jax.numpy as jnp


class Endless(gw.GoalEnv):
    spec = gw.EnvSpec(name="endless", obs_dim=1, goal_dim=1, action_space=gw.Discrete(2), max_steps=2**31 - 1)

    def reset(self, key):
        return self.show(jnp.zeros((1, 1)))

    def step(self, key, state, action):
        return self.show(state)

    def show(self, state):
        never = jnp.bool_(False)
        return state, gw.TimeStep(obs=state, achieved=state, goal=state + 1.0, terminated=never, success=never)
"""


def test_it_ends_an_evaluation_that_would_take_hours(tmp_path, environment):
    (tmp_path / "endless.py").write_text(ENDLESS)
    command = [sys.executable, "-m", "goalward", "train", "endless:Endless", "--preset", "quick", "--out", "run"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=tmp_path, **pipes) as process:
        try:
            for line in process.stdout:
                if "Evaluating" in line:
                    break
            time.sleep(3)  # by then it is compiled and runs
            for number in (signal.SIGINT, signal.SIGTERM):
                process.send_signal(number)
                time.sleep(1)  # or they might count as one
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()

    assert process.returncode == 130
    # On a machine so slow that it still compiled, the signals were heard in the ordinary way.
    assert re.fullmatch(r"goalward: (Left at once|Stopped after iteration 0); .*goalward train .*--resume .+\n", errors)


def test_signals_that_come_at_once_are_one(environment):
    """As `timeout` sends them; the process goes on until a later one."""
    program = """
import os, signal, time
from goalward.run.interrupts import ONE_REQUEST, catch_interrupts, leave_at_second_signal
leave_at_second_signal(lambda: print("left", flush=True), 7, grace=0.0)
with catch_interrupts():
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
        time.sleep(ONE_REQUEST / 6)  # or they would be heard as one without further ado
    time.sleep(2 * ONE_REQUEST)
    print("still there", flush=True)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        pass
    time.sleep(30)
"""
    answer = ended(program, environment)

    assert (answer.returncode, answer.stdout, answer.stderr) == (7, "still there\nleft\n", "")


def test_a_command_that_was_started_without_ctrl_c_hears_it(environment):
    """Scripts start what they leave in the background with that signal ignored."""
    program = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from goalward import cli, commands
commands.tasks = lambda options: os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["goalward", "tasks"]
cli.entry()
"""
    answer = ended(program, environment)

    assert (answer.returncode, answer.stderr) == (130, "goalward: Interrupted.\n")


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("sys.exit('of the users own')", 1, "of the users own\n"),
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("raise KeyboardInterrupt", 130, "goalward: Interrupted.\n"),
        ("sys.stdout.write('x'); os.close(1); raise KeyboardInterrupt", 130, "goalward: Interrupted.\n"),
        ("sys.stdout.close(); raise KeyboardInterrupt", 130, "goalward: Interrupted.\n"),
    ],
)
@pytest.mark.parametrize("is_joined", [False, True])
def test_a_command_ends_as_it_says(environment, end, code, error, is_joined):
    """However the code of a user's environment leaves it, and whoever has stopped listening."""
    program = f"""
import os, sys
from goalward import cli, commands
if {is_joined}:
    cli._is_joined, cli._part = lambda: True, lambda code, is_left_alone: None
def tasks(options):
    {end}
commands.tasks = tasks
sys.argv = ["goalward", "tasks"]
cli.entry()
"""
    del environment["PYTHONUNBUFFERED"]  # so that something is left to be written at the end
    answer = ended(program, environment)

    assert (answer.returncode, answer.stderr) == (code, error)


def ended(program, environment):
    """Returns how a process ended that ran a program."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_command_that_is_about_to_end_is_not_interrupted(environment, name):
    """A signal during what Python does at exit, where JAX lets processes part, would end in a traceback."""
    program = f"""
import atexit, os, signal, sys
from goalward import cli
def ending(main=cli.main):
    try:
        main()
    finally:  # called before what was registered before, as by JAX
        atexit.register(os.kill, os.getpid(), signal.{name})
cli.main = ending
sys.argv = ["goalward", "tasks"]
cli.entry()
"""
    answer = ended(program, environment)

    assert (answer.returncode, answer.stderr) == (0, "")
