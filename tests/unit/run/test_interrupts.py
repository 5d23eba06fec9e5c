"""Signals as flags. How a whole command takes them is tested in tests/exact."""

import os
import signal
import threading
import time

import pytest

import goalward as gw
from goalward.run.interrupts import (
    ONE_REQUEST,
    catch_interrupts,
    disregard_interrupts,
    is_interrupted,
    raise_interrupts,
)
from goalward.run.loop import Interrupted
from goalward.run.processes import in_all

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def handlers():
    """Puts back what signals did before the test, and returns it."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield before
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def test_a_signal_that_is_sent_twice_at_once_is_one_request():
    """As `timeout` sends it: to its child, and to the group that the child is in."""
    with catch_interrupts() as event:
        for number in (*SIGNALS, *SIGNALS):
            os.kill(os.getpid(), number)
        assert event.is_set()


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_sets_a_flag_and_a_later_one_interrupts(handlers, number):
    with catch_interrupts() as event:
        assert not is_interrupted()
        os.kill(os.getpid(), number)
        assert event.is_set()
        assert is_interrupted()
        time.sleep(ONE_REQUEST)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)

    assert not is_interrupted()
    assert [signal.getsignal(number) for number in SIGNALS] == handlers


def test_within_another_context_it_is_the_same_flag():
    with catch_interrupts() as outer:
        with catch_interrupts() as inner:
            assert inner is outer
        os.kill(os.getpid(), signal.SIGINT)  # the outer one still listens
        assert outer.is_set()


def test_beside_the_main_thread_nobody_listens(handlers):
    events = []

    def enter():
        with catch_interrupts() as event:
            events.append((event.is_set(), [signal.getsignal(number) for number in SIGNALS]))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert events == [(False, handlers)]


@pytest.mark.parametrize("number", SIGNALS)
def test_where_signals_interrupt_those_that_come_at_once_do_so_once(number):
    raise_interrupts()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
    time.sleep(ONE_REQUEST)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


def test_what_all_do_together_ends_with_a_signal_that_came_meanwhile():
    with catch_interrupts(), pytest.raises(KeyboardInterrupt):
        in_all(lambda: os.kill(os.getpid(), signal.SIGTERM))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_process_that_ends_by_itself_is_not_interrupted_but_hears(number):
    """A handler that does nothing: where signals are ignored no second one could end the process at once."""
    disregard_interrupts()
    os.kill(os.getpid(), number)

    assert signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL)


def test_a_new_run_that_is_stopped_while_it_compiles_begins_anew(tmp_path, monkeypatch):
    def interrupt(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)

    settings = {"num_evaluations": 1, "eval_episodes": 1, "render_episodes": 0}
    with monkeypatch.context() as patch, pytest.raises(Interrupted) as stopped:
        patch.setattr("goalward.run.loop.require_memory_of", interrupt)
        gw.train(preset="quick", seeds=2, steps=512, settings=settings, out=tmp_path / "run")

    words = "Stopped after iteration 0; there was no checkpoint yet. Go on with: goalward train --resume"
    assert str(stopped.value) == f"{words} {tmp_path / 'run'}"
    assert len(gw.resume(tmp_path / "run").final) == 2
