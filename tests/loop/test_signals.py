"""Signals are noted while a run works, and are as before at all other times."""

import os
import signal
from contextlib import ExitStack

import pytest

from thinc_torchopt.core import hooks
from thinc_torchopt.loop.signals import NUMBERS, Signals


@pytest.fixture(autouse=True)
def as_in_a_terminal():
    """Where tests run in the background, SIGINT may be ignored from the start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def handlers():
    return [signal.getsignal(number) for number in NUMBERS]


def test_signals_are_noted_inside():
    before, signals = handlers(), Signals()
    for _ in range(2):
        with signals:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.noted == signal.SIGTERM and handlers() == before
    with signals, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_signals_stay_until_the_end_that_is_told():
    before, signals = handlers(), Signals()
    with ExitStack() as end:
        signals.stay_until(end)
        for _ in range(2):
            with signals:
                pass
            assert handlers() != before
        os.kill(os.getpid(), signal.SIGTERM)
    assert handlers() == before and signals.noted == signal.SIGTERM


def test_signals_are_exchanged_once_if_the_end_is_told(monkeypatch):
    exchanged = []
    monkeypatch.setattr(
        signal, "signal", lambda number, handler, own=signal.signal: exchanged.append(number) or own(number, handler)
    )
    with ExitStack() as end:
        monkeypatch.setattr(hooks, "end_of_training", lambda: end)
        assert list(Signals().within_each(iter(range(50)))) == list(range(50))
    assert len(exchanged) == 2 * len(NUMBERS)


def test_signals_leave_others_handlers_and_ignored_signals_alone():
    def mine(number, frame):
        pass

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.noted is None
            term = signal.signal(signal.SIGTERM, mine)
        assert signal.getsignal(signal.SIGTERM) is mine and term == signals._note
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
