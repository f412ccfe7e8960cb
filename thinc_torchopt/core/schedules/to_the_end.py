"""Curves over a training: its length, and the steps of rise and fall.

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
