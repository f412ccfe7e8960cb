"""SIGTERM and SIGINT during a run: the run stops after its step is finished and saved.

While spaCy logs and saves, signals are noted only if hooks.py can tell when `spacy.training.loop.train` ends. Otherwise
the handlers pass them on meanwhile, as an abandoned run may leave them behind: nothing may swallow later signals.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any, TypeVar

from .. import hooks

Step = TypeVar("Step")

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """A context manager that records signals. Only in the main thread; ignored signals stay ignored.

    numbers (tuple[int, ...]): The signals.

    Public: `noted` (the number of the first signal that came, or None).
    """

    def __init__(self, numbers: tuple[int, ...] = NUMBERS) -> None:
        self._numbers = numbers
        self.noted: int | None = None
        self._before: dict[int, Any] = {}
        self._stay = False
        self._passes_on = False

    def __enter__(self) -> Signals:
        if not self._before and threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if not self._stay:
            self._restore()

    def within_each(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Run each step inside the context. While the step is logged and saved, signals are noted or passed on."""
        end = hooks.end_of_training()
        with ExitStack() as own:
            self.stay_until(own if end is None else end)
            while True:
                self._passes_on = False
                with self:
                    step = next(steps, None)
                if step is None:
                    return
                self._passes_on = end is None
                yield step

    def stay_until(self, end: ExitStack) -> None:
        """Keep the handlers outside the context too, until `end` is closed."""
        self._stay = True
        end.callback(self._end)

    def _end(self) -> None:
        self._stay = False
        self._restore()

    def _restore(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python lets no other thread do it. It dropped an abandoned run, whose handlers pass signals on.
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._note:  # otherwise other code has replaced it
                signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._passes_on and callable(before := self._before[number]):
            before(number, frame)
            return
        if self._passes_on:  # the system's own way
            self._restore()
            signal.raise_signal(number)
        if self.noted is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # the second Ctrl-C stops at once
        if self.noted is None:
            self.noted = number
