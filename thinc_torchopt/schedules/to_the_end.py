"""Curves over a training: how many steps it has, and those of its rise and fall.

Without `total_steps`, a curve ends where the training ends. How long that is, it is told once, before its first value
is drawn: see "spans" in schedules/. Until then `value` is that of step 0 in a training without an end, which hardly
any end changes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Optional

from ..checks import MAX_STEPS
from ..errors import ScheduleError
from .arguments import Arguments


class Span(NamedTuple):
    """The steps of a curve: all, and those of its rise, and of its fall if that has a length of its own."""

    total: int
    warmup: int
    decay: int = 0


@dataclass(frozen=True)
class Lengths:
    """What the config says of the lengths of a curve: in steps, or as parts of the total.

    label (str): What the config calls the schedule.
    warmup_steps, warmup_ratio, decay_steps, decay_ratio: One of each two.
    """

    label: str
    warmup_steps: Optional[int] = 0
    warmup_ratio: Optional[float] = None
    decay_steps: Optional[int] = 0
    decay_ratio: Optional[float] = None

    def check(self) -> None:
        """RAISES (ScheduleError): A length is given twice or not at all, or is out of its range."""
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
        """The steps of a curve with that total.

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
    """A schedule that ends where the training ends. Subclasses have `_at`.

    lengths (Lengths): Of its parts.

    Public: `spans_training` (False: it need not be told), `total_steps` (None before it was told).
    """

    spans_training = True

    def __init__(self, lengths: Lengths):
        self._lengths = lengths
        self._span = lengths.span(MAX_STEPS)
        self._step = -1
        self.total_steps: Optional[int] = None

    def _at(self, step: int) -> float:
        raise NotImplementedError

    @property
    def value(self) -> float:
        return self._at(max(0, self._step))

    def set_total_steps(self, total_steps: int) -> None:
        """RAISES (ScheduleError): Its parts don't fit."""
        try:
            self._span = self._lengths.span(total_steps)
        except ScheduleError as error:
            raise ScheduleError(
                f"{error} The total is that of the training, as the schedule has no total_steps of its own. Train for "
                "longer, or lower the steps of its parts."
            ) from error
        self.total_steps = total_steps

    def __next__(self) -> float:
        if self.total_steps is None and self.spans_training:
            refuse_without_end(f"'{self._lengths.label}'")
        self._step += 1
        return self.value


class CurveToTheEnd(SpansTraining):
    """A function of the step.

    value_at (Callable): Its value at a step, in a span.
    """

    def __init__(self, lengths: Lengths, value_at: Callable[[int, Span], float]):
        super().__init__(lengths)
        self._value_at = value_at

    def _at(self, step: int) -> float:
        return self._value_at(step, self._span)


def is_waiting(source: Any) -> bool:
    """Whether a schedule is yet to be told how long the training is."""
    return getattr(source, "spans_training", False) and source.total_steps is None


def with_end(source: Any, total_steps: int) -> Any:
    """A source, told how long the training is if it spans it: to look at its values without a training."""
    if is_waiting(source):
        source.set_total_steps(total_steps)
    return source


def refuse_without_end(which: str) -> NoReturn:
    """which (str): The schedule. RAISES (ScheduleError): Always."""
    raise ScheduleError(
        f"Can't use the schedule {which} without total_steps: expected a training whose end is known, found none. Left "
        "out, total_steps is the number of steps of spacy train with an optimizer of thinc-torchopt. Set total_steps; "
        "or in a loop of your own call optimizer.set_total_steps before the first update."
    )
