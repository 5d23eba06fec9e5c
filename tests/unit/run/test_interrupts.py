"""Signals as flags. How a whole command takes them is tested in tests/exact."""

import os
import signal
import threading
import time

import pytest

from goalward.run.interrupts import ONE_REQUEST, catch_interrupts, disregard_interrupts, is_interrupted
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


def test_what_all_do_together_ends_with_a_signal_that_came_meanwhile():
    with catch_interrupts(), pytest.raises(KeyboardInterrupt):
        in_all(lambda: os.kill(os.getpid(), signal.SIGTERM))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_process_that_ends_by_itself_is_not_interrupted_but_hears(number):
    """A handler that does nothing: where signals are ignored no second one could end the process at once."""
    disregard_interrupts()
    os.kill(os.getpid(), number)

    assert signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL)
