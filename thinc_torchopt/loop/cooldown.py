"""Start the fall of learning rates on demand: see `TorchOptimizer.begin_decay`. The run ends with the fall.

SIGUSR1 starts it too: `kill -USR1` with the id of the process of any rank.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

from ..core.optimizer import TorchOptimizer
from .events import Control, StepEnd, TrainBegin
from .processes import Alone
from .signals import Signals

logger = logging.getLogger("spacy.torchopt")


class RunCooldown:
    """Starts the fall of learning rates at a signal, and ends the run after it. A listener.

    optimizer (TorchOptimizer): The run's.

    Public: `ranks` (this process among several), `begin` (starts the fall at the event `on_step_end`: an attachment
    that plans the decay sets its own).
    """

    name = "cooldown"

    def __init__(self, optimizer: TorchOptimizer):
        self.ranks = Alone()
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
        if self.ranks.is_told_to_decay(self.noted):
            self._signals.noted = None
            logger.info("SIGUSR1 after step %d: the learning rate falls, and then the training ends.", event.step)
            self.begin(event)
        if self._optimizer.decay_is_over:
            control.should_evaluate = control.should_stop = True

    def close(self) -> None:
        self._signals.__exit__()
