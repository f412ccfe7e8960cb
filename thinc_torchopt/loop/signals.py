"""Signals to a run. SIGTERM and SIGINT: it stops after its step is finished and saved. SIGUSR1, `kill -USR1` with the
id of the process of any rank: learning rates fall, as by `TorchOptimizer.begin_decay`, and the run ends with the fall.

Handlers are installed while our part of the loop runs. While spaCy logs and saves, they stay only if core/hooks.py can
tell when `spacy.training.loop.train` ends: otherwise an abandoned run would leave a handler behind, which swallows
later signals.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any, TypeVar

from ..core import hooks
from ..core.log import inform
from ..core.optimizer import TorchOptimizer
from .events import Control, StepEnd, TrainBegin

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


class RunCooldown:
    """Starts the fall of learning rates at a signal, and ends the run after it. A listener.

    optimizer (TorchOptimizer): The run's.

    Public: `begin` (starts the fall at the event `on_step_end`: an attachment
    that plans the decay sets its own).
    """

    name = "cooldown"

    def __init__(self, optimizer: TorchOptimizer):
        self.begin: Callable[[StepEnd], object] = lambda event: optimizer.begin_decay()
        self._optimizer = optimizer
        # Windows has no such signal. A handler of the user's stays in place.
        number = getattr(signal, "SIGUSR1", None)
        is_free = number is not None and signal.getsignal(number) == signal.SIG_DFL
        self._signals = Signals((number,) if number is not None and is_free else ())

    @property
    def noted(self) -> bool:
        """Whether this process got the signal."""
        return self._signals.noted is not None

    def on_train_begin(self, event: TrainBegin, control: Control) -> None:
        if self._optimizer.can_begin_decay:
            self._signals.__enter__()

    def on_step_end(self, event: StepEnd, control: Control) -> None:
        if event.run.ranks.is_told_to_decay(self.noted):
            self._signals.noted = None
            inform("SIGUSR1 after step %d: the learning rate falls, and then the training ends.", event.step)
            self.begin(event)
        if self._optimizer.decay_is_over:
            control.should_evaluate = control.should_stop = True

    def close(self) -> None:
        self._signals.__exit__()
