"""The schedule that rises, stays, and falls: in time for the end, or on demand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Dict, Optional

from ..schema import Count, Positive, read, write
from .arguments import Arguments
from .to_the_end import Lengths, SpansTraining


class StableDecaySchedule(SpansTraining):
    """The schedule of `warmup_stable_decay`.

    lengths (Lengths): Of the rise and of the fall.
    rise (Callable): (step, steps of the rise) -> value.
    fall (Callable): (step, steps of the fall, value before it) -> value. Both steps are counted from their start.
    when_told (bool): It falls only on demand.

    Public: `spans_training` (whether it ends with the training), `decay_was_told`.
    """

    can_begin_decay = True

    def __init__(
        self,
        lengths: Lengths,
        rise: Callable[[int, int], float],
        fall: Callable[[int, int, float], float],
        *,
        when_told: bool,
    ):
        super().__init__(lengths)
        self._rise = rise
        self._fall = fall
        self._when_told = when_told
        self.spans_training = not when_told
        self._told = StableDecayState(None, None)

    def fix_total_steps(self, total_steps: int) -> None:
        """Use the length in the config. RAISES (ScheduleError): The parts don't fit."""
        self._span = self._lengths.span(total_steps)
        self.total_steps, self.spans_training = total_steps, False

    def begin_decay(self, decay_steps: Optional[int] = None) -> bool:
        """Start to fall, from the value of the next step.

        decay_steps (int): Length of the fall. None: as in the config.
        RETURNS (bool): False: it had started before, and nothing changes.
        RAISES (ScheduleError): Not a number of steps.
        """
        if decay_steps is not None:
            Arguments(self._lengths.label).whole("decay_steps", decay_steps, at_least=1)
        step = max(0, self._step)
        if step >= self._falls_from:
            return False
        self._told = StableDecayState(step, decay_steps)
        return True

    @property
    def waits_to_be_told(self) -> bool:
        """Whether only `begin_decay` ends it."""
        return self._when_told

    @property
    def decay_was_told(self) -> bool:
        return self._told.begun_at is not None

    @property
    def decay_is_over(self) -> bool:
        """Whether the decay was started and is over."""
        return self._told.begun_at is not None and self._step >= self._told.begun_at + self._decay_steps

    @property
    def _decay_steps(self) -> int:
        return self._told.decay_steps or self._span.decay

    @property
    def _falls_from(self) -> float:
        if self._told.begun_at is not None:
            return self._told.begun_at
        return float("inf") if self._when_told else self._span.total - self._span.decay

    def _at(self, step: int) -> float:
        begin, warmup = self._falls_from, self._span.warmup
        if step < begin:
            return self._rise(step, warmup)
        return self._fall(step - int(begin), self._decay_steps, self._rise(int(begin), warmup))

    def state_dict(self) -> Dict[str, Any]:
        """The step at which the decay was started, and its length."""
        return write(self._told)

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): Not the state of such a schedule. Nothing changes then."""
        self._told = read(StableDecayState, state, f"the state of the schedule '{self._lengths.label}'")


@dataclass
class StableDecayState:
    """Its saved form. None: the decay was not started, or has the length of the config."""

    begun_at: Optional[Count]
    decay_steps: Optional[Positive]
