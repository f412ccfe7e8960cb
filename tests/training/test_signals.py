"""Signals are noted while a run works, and are as before at all other times."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from textwrap import dedent

import pytest

from thinc_torchopt.training.signals import NUMBERS, Signals


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


def kill(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_signals_of_steps_are_noted_and_passed_on_in_between(monkeypatch):
    """Outside of spaCy's `train`, nobody tells the end. The handlers are exchanged once, not at each step."""
    before, signals, exchanged = handlers(), Signals(), []
    monkeypatch.setattr(
        signal, "signal", lambda number, handler, own=signal.signal: exchanged.append(number) or own(number, handler)
    )
    for step in (steps := signals.within_each(iter(range(50)))):
        assert signals.noted is None
        if step % 10 == 0:
            with pytest.raises(KeyboardInterrupt):
                kill()
    assert handlers() == before and len(exchanged) == 2 * len(NUMBERS) and not list(steps)

    steps = signals.within_each(kill(number) for number in (signal.SIGTERM, signal.SIGINT))
    assert next(steps, "over") == "over"  # None stands for the end
    assert signals.noted == signal.SIGTERM and handlers() == before


@pytest.mark.parametrize("drop", [lambda steps: None, lambda steps: threading.Thread(target=steps.close).run()])
def test_signals_of_an_abandoned_run_are_as_before(drop):
    before = handlers()
    steps = Signals().within_each(iter([1, 2]))
    next(steps)
    drop(steps)
    del steps
    assert handlers() == before


def test_signals_of_a_run_that_another_thread_drops_are_passed_on():
    steps = Signals().within_each(iter([1, 2]))
    next(steps)
    thread = threading.Thread(target=steps.close)
    thread.start()
    thread.join()
    with pytest.raises(KeyboardInterrupt):
        kill()


def test_signals_between_steps_end_the_process():
    code = """
        import os, signal
        from thinc_torchopt.training.signals import Signals
        for _ in Signals().within_each(iter([1, 2])):
            os.kill(os.getpid(), signal.SIGTERM)
        print("still there")
    """
    found = subprocess.run([sys.executable, "-c", dedent(code)], stdout=subprocess.PIPE)
    assert (found.returncode, found.stdout) == (-signal.SIGTERM, b"")
