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
    RAISES (ScheduleError): A length is given twice, is missing, or is out of its range.
    """

    label: str
    warmup_steps: Optional[int] = 0
    warmup_ratio: Optional[float] = None
    decay_steps: Optional[int] = 0
    decay_ratio: Optional[float] = None

    def __post_init__(self) -> None:
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


class Curve(Iterator[float]):
    """A function of the step. It does not end.

    lengths (Lengths): Of its parts.
    value_at (Callable): Its value at a step, in a span.
    total_steps (int | None): Its length. None: that of the training.
    RAISES (ScheduleError): Its parts don't fit.

    Public: `spans_training` (False if the config has its length), `total_steps` (None if not known yet), `label` (its
        name in the config), `span`, and `step` (of the last value; -1 before the first).
    """

    def __init__(self, lengths: Lengths, value_at: Callable[[int, Span], float], total_steps: Optional[int] = None):
        self._lengths = lengths
        self._value_at = value_at
        self.label = lengths.label
        self.spans_training = total_steps is None
        self.total_steps = total_steps
        self.span = lengths.span(MAX_STEPS if total_steps is None else total_steps)
        self.step = -1

    def _at(self, step: int) -> float:
        return self._value_at(step, self.span)

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
        if is_waiting(self):
            refuse_without_end(f"'{self.label}'")
        self.step += 1
        return self.value


@dataclass
class FallState:
    """The saved form of a fall. None: it did not begin at will, or has the length of the config."""

    begun_at: Optional[Count]
    decay_steps: Optional[Positive]


class StableDecay(Curve):
    """The curve of `warmup_stable_decay`. Its fall begins at its step, or before that at will: by SIGUSR1, an operation
    of rules, the budget, or `TorchOptimizer.begin_decay`.

    lengths (Lengths): Of the rise and of the fall.
    rise (Callable): Its value at a step without the fall, in a span.
    fall (Callable): (step of the fall, steps of the fall, value before it) -> value.
    total_steps (int | None): As of `Curve`.
    only_at_will (bool): The fall has no step of its own, and the curve no end.

    Public: `only_at_will`.
    """

    def __init__(
        self,
        lengths: Lengths,
        rise: Callable[[int, Span], float],
        fall: Callable[[int, int, float], float],
        total_steps: Optional[int] = None,
        *,
        only_at_will: bool = False,
    ):
        super().__init__(lengths, rise, MAX_STEPS if only_at_will else total_steps)
        self._fall = fall
        self._state = FallState(None, None)
        self.only_at_will = only_at_will

    def _at(self, step: int) -> float:
        begin = self._first_step
        if step < begin:
            return super()._at(step)
        return self._fall(step - int(begin), self._fall_steps, super()._at(int(begin)))

    @property
    def cooldown(self) -> "StableDecay":
        """A schedule with such a fall: itself."""
        return self

    def begin(self, decay_steps: Optional[int] = None) -> bool:
        """Begin to fall, from the value of the next step.

        decay_steps (int): Length of the fall. None: as in the config.
        RETURNS (bool): False: it had begun before, and nothing changes.
        RAISES (ScheduleError): Not a number of steps.
        """
        if decay_steps is not None:
            Arguments(self.label).whole("decay_steps", decay_steps, at_least=1)
        step = max(0, self.step)
        if step >= self._first_step:
            return False
        self._state = FallState(step, decay_steps)
        return True

    @property
    def _first_step(self) -> float:
        """The first step of the fall; infinite if that is not known."""
        if self._state.begun_at is not None:
            return self._state.begun_at
        return math.inf if self.only_at_will else self.span.total - self.span.decay

    @property
    def _fall_steps(self) -> int:
        return self._state.decay_steps or self.span.decay

    @property
    def begun_at_will(self) -> bool:
        return self._state.begun_at is not None

    @property
    def is_over(self) -> bool:
        """Whether the fall began at will, and is over."""
        return self.begun_at_will and self.step >= self._first_step + self._fall_steps

    def state_dict(self) -> dict[str, Any]:
        """The step at which the fall began at will, and its length."""
        return write(self._state)

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): Not the state of such a schedule. Nothing changes then."""
        self._state = read(FallState, state, f"the state of the schedule '{self.label}'")


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
