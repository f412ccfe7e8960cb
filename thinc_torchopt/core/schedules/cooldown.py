"""The schedule that rises, stays, and falls; and its fall, which may begin at will."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Dict, Optional

from ..schema import Count, Positive, read, write
from .to_the_end import Arguments, Lengths, SpansTraining


class Cooldown:
    """The fall of a schedule. It begins at its step, or before that at will: by SIGUSR1, an operation of rules, the
    budget, or `TorchOptimizer.begin_decay`.

    schedule (SpansTraining): The schedule.
    only_at_will (bool): It has no step of its own.

    Public: `only_at_will`, `state`.
    """

    def __init__(self, schedule: SpansTraining, *, only_at_will: bool):
        self.only_at_will = only_at_will
        self.state = CooldownState(None, None)
        self._schedule = schedule

    def begin(self, decay_steps: Optional[int] = None) -> bool:
        """Begin to fall, from the value of the next step.

        decay_steps (int): Length of the fall. None: as in the config.
        RETURNS (bool): False: it had begun before, and nothing changes.
        RAISES (ScheduleError): Not a number of steps.
        """
        if decay_steps is not None:
            Arguments(self._schedule.label).whole("decay_steps", decay_steps, at_least=1)
        step = max(0, self._schedule.step)
        if step >= self.first_step:
            return False
        self.state = CooldownState(step, decay_steps)
        return True

    @property
    def first_step(self) -> float:
        """Its first step; infinite if that is not known."""
        if self.state.begun_at is not None:
            return self.state.begun_at
        span = self._schedule.span
        return math.inf if self.only_at_will else span.total - span.decay

    @property
    def steps(self) -> int:
        """Its length."""
        return self.state.decay_steps or self._schedule.span.decay

    @property
    def begun_at_will(self) -> bool:
        return self.state.begun_at is not None

    @property
    def is_over(self) -> bool:
        """Whether it began at will, and is over."""
        return self.state.begun_at is not None and self._schedule.step >= self.state.begun_at + self.steps


@dataclass
class CooldownState:
    """The saved form of a cooldown. None: it did not begin at will, or has the length of the config."""

    begun_at: Optional[Count]
    decay_steps: Optional[Positive]


class StableDecaySchedule(SpansTraining):
    """The schedule of `warmup_stable_decay`.

    lengths (Lengths): Of the rise and of the fall.
    rise (Callable): (step, steps of the rise) -> value.
    fall (Callable): (step, steps of the fall, value before it) -> value. Both steps are counted from their start.
    only_at_will (bool): It only falls at will.

    Public: `spans_training` (whether it ends with the training), `cooldown`.
    """

    def __init__(
        self,
        lengths: Lengths,
        rise: Callable[[int, int], float],
        fall: Callable[[int, int, float], float],
        *,
        only_at_will: bool,
    ):
        super().__init__(lengths)
        self._rise = rise
        self._fall = fall
        self.spans_training = not only_at_will
        self.cooldown = Cooldown(self, only_at_will=only_at_will)

    def fix_total_steps(self, total_steps: int) -> None:
        """Use the length in the config. RAISES (ScheduleError): The parts don't fit."""
        self.span = self._lengths.span(total_steps)
        self.total_steps, self.spans_training = total_steps, False

    def _at(self, step: int) -> float:
        begin, warmup = self.cooldown.first_step, self.span.warmup
        if step < begin:
            return self._rise(step, warmup)
        return self._fall(step - int(begin), self.cooldown.steps, self._rise(int(begin), warmup))

    def state_dict(self) -> Dict[str, Any]:
        """The step at which the fall began at will, and its length."""
        return write(self.cooldown.state)

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): Not the state of such a schedule. Nothing changes then."""
        self.cooldown.state = read(CooldownState, state, f"the state of the schedule '{self.label}'")
