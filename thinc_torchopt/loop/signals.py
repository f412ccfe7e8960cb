"""SIGTERM and SIGINT during a run: the run stops after its step is finished and saved.

Handlers are installed while our part of the loop runs. While spaCy logs and saves, they stay only if core/hooks.py can
tell when `spacy.training.loop.train` ends: otherwise an abandoned run would leave a handler behind, which swallows
later signals.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any, TypeVar

from ..core import hooks

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
        """Run each step inside the context, and leave it while the step is logged and saved."""
        if (end := hooks.end_of_training()) is not None:
            self.stay_until(end)
        while True:
            with self:
                step = next(steps, None)
            if step is None:
                return
            yield step

    def stay_until(self, end: ExitStack) -> None:
        """Keep the handlers outside the context too, until `end` is closed."""
        self._stay = True
        end.callback(self._end)

    def _end(self) -> None:
        self._stay = False
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._note:  # otherwise other code has replaced it
                signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # the second Ctrl-C stops at once
        if self.noted is None:
            self.noted = number
