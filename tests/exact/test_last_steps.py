"""What comes after the last iteration: the final measurements and the picture. By then everything is saved."""

import itertools
import signal
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_runs import training_of

import goalward as gw
from goalward.run.directory import RunDirectory
from goalward.run.interrupts import ONE_REQUEST
from goalward.run.loop import Interrupted
from goalward.run.progress import Silent


class Listener(Silent):
    """Keeps what is said."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


@pytest.fixture
def training(copy_of_finished):
    """A run that has all its iterations behind it, and no results yet."""
    directory = RunDirectory.open(copy_of_finished)
    directory.results.unlink()
    return training_of(directory, Listener())


def press(training, *signals):
    """Lets the signals arrive during the last measurement."""
    evaluate = training.program.evaluate

    def interrupted_evaluate(*arguments, **options):
        for number in signals:
            signal.raise_signal(number)
        return evaluate(*arguments, **options)

    training.program.evaluate = interrupted_evaluate


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_last_measurements_stops_the_run_and_can_be_made_up_for(training, finished, number):
    before = signal.getsignal(number)
    press(training, number)
    with pytest.raises(Interrupted, match="Stopped after iteration 140; everything is saved") as stopped:
        training.run()

    assert isinstance(stopped.value, KeyboardInterrupt)  # and no GoalwardError, which a loop over runs may pass over
    assert signal.getsignal(number) is before
    assert not training.members[0].directory.results.exists()
    assert gw.resume(training.members[0].directory.path).final == finished.final


def test_after_a_second_signal_the_run_waits_for_the_device(training):
    begun = []

    def keep_the_device_busy(*_, **__):
        signal.raise_signal(signal.SIGINT)
        time.sleep(ONE_REQUEST)
        begun.append(jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda _, y: jnp.cos(y @ y), x))(jnp.ones((300, 300))))
        signal.raise_signal(signal.SIGINT)

    training.program.evaluate = keep_the_device_busy
    with pytest.raises(Interrupted, match="everything up to the last checkpoint is saved"):
        training.run()

    assert begun[0].is_ready()


def wrong_render(state):
    raise RuntimeError("no brush")


def pictures_of_growing_size():
    sizes = itertools.count(8)
    return lambda state: np.zeros((next(sizes), 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("render", "complaint"), [(wrong_render, "RuntimeError: no brush"), (pictures_of_growing_size(), "ValueError: ")]
)
def test_a_mistake_in_render_costs_the_picture_and_not_the_run(training, finished, render, complaint):
    (member,) = training.members
    member.plan = replace(member.plan, run=replace(member.plan.run, render_episodes=2))
    training.env.render = render
    (run,) = training.run()

    assert run.final == finished.final
    assert [text for text in training.reporter.said if text.startswith(f"The picture could not be made; {complaint}")]
    assert training.members[0].directory.results.is_file()
