"""Curves over a training: its length, and the steps of rise and fall. A fall may begin at will.

Without `total_steps`, a curve ends with the training. It gets that length once, before its first value is drawn: see
"span" in __init__.py. Until then `value` is that of step 0 in a training without an end, which hardly depends
on the end.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Optional

from ..checks import MAX_STEPS, Section
from ..errors import ScheduleError
from ..schema import Count, Positive, read, write


class Arguments(Section):
    """Checks the arguments of one schedule. confection accepts numbers in quotes, and generators for any argument.

    label (str): The name of the schedule in the config.
    """

    def __init__(self, label: str):
        super().__init__(label, allows_texts=False)

    def refuse(self, name: str, expected: str, found: Any, advice: str = "") -> NoReturn:
        """RAISES (ScheduleError): Always."""
        raise ScheduleError(
            f"Can't build the schedule '{self.path}': expected '{name}' to be {expected}, found {found!r}."
        )


class Span(NamedTuple):
    """The steps of a curve: all, those of its rise, and those of its fall if that has its own length."""

    total: int
    warmup: int
    decay: int = 0


@dataclass(frozen=True)
class Lengths:
    """The lengths of a curve in the config: steps, or fractions of the total.

    label (str): The name of the schedule in the config.
    warmup_steps, warmup_ratio, decay_steps, decay_ratio: One of each pair.
    """

    label: str
    warmup_steps: Optional[int] = 0
    warmup_ratio: Optional[float] = None
    decay_steps: Optional[int] = 0
    decay_ratio: Optional[float] = None

    def check(self) -> None:
        """RAISES (ScheduleError): A length is given twice, is missing, or is out of its range."""
        check = Arguments(self.label)
        for name, steps, ratio in (
            ("warmup", self.warmup_steps, self.warmup_ratio),
            ("decay", self.decay_steps, self.decay_ratio),
        ):
            if (steps is None) == (ratio is None):
                raise ScheduleError(
                    f"Can't build the schedule '{self.label}': expected either '{name}_steps' or '{name}_ratio', a "
                    f"part of total_steps, found {'neither' if steps is None else 'both'}."
                )
            if steps is not None:
                check.whole(f"{name}_steps", steps)
            else:
                check.number(f"{name}_ratio", ratio, at_most=1.0)

    def span(self, total: Any) -> Span:
        """The steps of a curve with this total.

        RAISES (ScheduleError): They don't fit.
        SOURCE: A ratio is rounded up, as in transformers/training_args.py, get_warmup_steps.
        """
        check = Arguments(self.label)
        if not isinstance(total, int):
            check.whole("total_steps", total, at_least=1)
        warmup = _steps(self.warmup_steps, self.warmup_ratio, total)
        decay = _steps(self.decay_steps, self.decay_ratio, total)
        because = " (warmup_steps + decay_steps)" if decay else " (warmup_steps)" if warmup else ""
        check.whole("total_steps", total, at_least=max(1, warmup + decay), because=because)
        return Span(total, warmup, decay)


def _steps(steps: Optional[int], ratio: Optional[float], total: int) -> int:
    return math.ceil(total * ratio) if ratio is not None else steps or 0


class SpansTraining(Iterator[float]):
    """A schedule that ends with the training. Subclasses have `_at`.

    lengths (Lengths): Of its parts.

    Public: `spans_training` (False if the config has its length), `total_steps` (None if not known yet), `label` (its
        name in the config), `span`, and `step` (of the last value; -1 before the first).
    """

    spans_training = True

    def __init__(self, lengths: Lengths):
        self._lengths = lengths
        self.label = lengths.label
        self.span = lengths.span(MAX_STEPS)
        self.step = -1
        self.total_steps: Optional[int] = None

    def _at(self, step: int) -> float:
        raise NotImplementedError

    @property
    def value(self) -> float:
        return self._at(max(0, self.step))

    @property
    def warmup_steps(self) -> int:
        return self.span.warmup

    def set_total_steps(self, total_steps: int) -> None:
        """RAISES (ScheduleError): Its parts don't fit."""
        try:
            self.span = self._lengths.span(total_steps)
        except ScheduleError as error:
            raise ScheduleError(
                f"{error} The total is the length of the training, as the schedule has no total_steps. Train for "
                "longer, or shorten its parts."
            ) from error
        self.total_steps = total_steps

    def __next__(self) -> float:
        if self.total_steps is None and self.spans_training:
            refuse_without_end(f"'{self.label}'")
        self.step += 1
        return self.value


class CurveToTheEnd(SpansTraining):
    """A function of the step.

    value_at (Callable): Its value at a step, in a span.
    """

    def __init__(self, lengths: Lengths, value_at: Callable[[int, Span], float]):
        super().__init__(lengths)
        self._value_at = value_at

    def _at(self, step: int) -> float:
        return self._value_at(step, self.span)


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

    def state_dict(self) -> dict[str, Any]:
        """The step at which the fall began at will, and its length."""
        return write(self.cooldown.state)

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): Not the state of such a schedule. Nothing changes then."""
        self.cooldown.state = read(CooldownState, state, f"the state of the schedule '{self.label}'")


def is_waiting(source: Any) -> bool:
    """Whether a schedule does not know the length of the training yet."""
    return getattr(source, "spans_training", False) and source.total_steps is None


def with_end(source: Any, total_steps: int) -> Any:
    """A source that knows the length of the training if it spans it, to look at its values without a training."""
    if is_waiting(source):
        source.set_total_steps(total_steps)
    return source


def refuse_without_end(which: str) -> NoReturn:
    """which (str): The schedule. RAISES (ScheduleError): Always."""
    raise ScheduleError(
        f"Can't use the schedule {which} without total_steps: the length of the training is not known. By default, "
        "total_steps is the number of steps of spacy train with an optimizer of thinc-torchopt. Set total_steps; or "
        "in a loop of your own call optimizer.set_total_steps before the first update."
    )
