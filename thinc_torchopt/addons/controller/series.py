"""Metrics over other metrics: the newest values of an expression, and its best value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...core.errors import ControllerError
from ...core.schema import AnyNumber
from .evaluator import MetricUnavailable, summary
from .metrics import MAX_WINDOW, SECTION, BestValue, Metric, controller_metrics
from .rules import Rule, expression
from .values import Keys

_EVENTS = {"steps": "on_step_end", "evaluations": "on_evaluate"}


class Series(Metric):
    """A metric over the values of an expression.

    Public, once it is prepared: `of` (the expression), `event` (on which it has a new value).
    """

    reads = ()
    is_plain = True
    of: Rule

    def __init__(self, of: str, by: Literal["steps", "evaluations"] | None):
        super().__init__()
        self._text = of
        self._by = None if by is None else SECTION.choice("by", by, tuple(_EVENTS))
        self.event = _EVENTS[by or "steps"]
        self.events = tuple(_EVENTS.values())

    def prepare(self, metrics: Mapping[str, Any]) -> None:
        keys = {name: getattr(metric, "keys", None) for name, metric in metrics.items()}
        self.of = expression(self._text, keys)
        if self._by is None:
            used = [metrics[name] for name in self.of.names]
            in_steps = [one is None or "on_step_end" in _when_new(one) for one in used]
            self.event = _EVENTS["steps" if any(in_steps) else "evaluations"]
        self.keeps = self._kept()  # type: ignore[misc]

    def _kept(self) -> tuple[str, ...]:
        return (self.event,)

    def check_keys(self, keys: Mapping[str, Keys | None]) -> None:
        """RAISES (ControllerError): The expression uses a key that a metric does not have. keys: Those in this run."""
        Rule(self._text, keys, keys, gives="a number")

    def new_value(self, event_name: str, values: Mapping[str, Any], step: int) -> float | None:
        """The value of the expression, if this event has a new one."""
        if event_name != self.event:
            return None
        try:
            value = self.of.evaluate(values, step)
        except MetricUnavailable:
            return None
        except ControllerError as error:
            raise ControllerError(f"{str(error).rstrip('.')}. The expression is: {self.of.text}") from None
        try:
            return None if value is None else float(value)
        except OverflowError:
            raise ControllerError(f"a number of {self.of.text} is not in the range of floats") from None


def _when_new(metric: Any) -> Collection[str]:
    """The events on which a metric may have a new value."""
    return (metric.event,) if isinstance(metric, Series) else metric.events


@controller_metrics("Window")
class Window(Series):
    """The newest values of an expression over other metrics.

    Keys: `values` (oldest first), `count`, `first`, `last`, `min`, `max`, `mean`, `median`, `std`, and `slope`, the
    change from one value to the next on the straight line through them. Without a value until it has `at_least` values.
    If one of them is NaN, so are all but `values`, `count`, `first` and `last`.

    of (str): The expression: "norms['total']". Its metrics must be defined before.
    size (int): Number of values, up to 10,000.
    by (str | None): "steps" or "evaluations": when a value is added. None: at each evaluation if its metrics have new
        values only there, else at each step.
    at_least (int | None): The fewest values. None: `size`.
    """

    keys = dict.fromkeys(("values", "count", "first", "last", "min", "max", "mean", "median", "std", "slope"))
    is_in_memory = True

    def __init__(
        self,
        of: str,
        size: int,
        by: Literal["steps", "evaluations"] | None = None,
        at_least: int | None = None,
    ):
        super().__init__(of, by)
        self._size = SECTION.whole("size", size, at_least=1)
        if self._size > MAX_WINDOW:
            SECTION.refuse("size", f"at most {MAX_WINDOW:,}", size)
        self._at_least = self._size if at_least is None else SECTION.whole("at_least", at_least, at_least=1)
        if self._at_least > self._size:
            SECTION.refuse("at_least", f"at most 'size', which is {self._size}", at_least)
        self.memory = WindowState()

    def compute(self, event_name: str, **kwargs: Any) -> Any:
        number = self.new_value(event_name, kwargs["values"], kwargs["step"])
        if number is None:
            return None
        self.memory.values.append(number)
        del self.memory.values[: -self._size]
        return self.value_of_memory()

    @property
    def is_filling(self) -> bool:
        """Whether it has some values, but not enough for a value of its own."""
        return 0 < len(self.memory.values) < self._at_least

    def value_of_memory(self) -> Any:
        if len(numbers := self.memory.values) < self._at_least:
            return None
        ends = {"values": numbers, "count": len(numbers), "first": numbers[0], "last": numbers[-1]}
        return ends | summary(numbers)


@dataclass
class WindowState:
    """The state of Window: its numbers, oldest first."""

    values: list[AnyNumber] = field(default_factory=list)


@controller_metrics("Best")
class Best(Series):
    """The best value so far of an expression over other metrics.

    Keys: `value`, `step` (of the best value), `steps_since`, and `evaluations_since`, the number of evaluations without
    a better value. The best value is never NaN or infinite.

    of (str): The expression: "dev['per_word']". Its metrics must be defined before.
    mode (str): "min" or "max": which values are better.
    min_delta (float): A value must be more than this below or above the best to count as better.
    min_delta_mode (str): "absolute", or "relative": `min_delta` is a part of the best value.
    by (str | None): "steps" or "evaluations": when values are compared. None: as in `Window`.
    """

    keys = dict.fromkeys(("value", "step", "steps_since", "evaluations_since"))

    def __init__(
        self,
        of: str,
        mode: Literal["min", "max"],
        min_delta: float = 0.0,
        min_delta_mode: Literal["absolute", "relative"] = "absolute",
        by: Literal["steps", "evaluations"] | None = None,
    ):
        super().__init__(of, by)
        self._mode: Literal["min", "max"] = SECTION.choice("mode", mode, ("min", "max"))
        self._min_delta = SECTION.number("min_delta", min_delta)
        self._is_relative = SECTION.choice("min_delta_mode", min_delta_mode, ("absolute", "relative")) == "relative"
        self.memory = BestValue()

    def _kept(self) -> tuple[str, ...]:
        return tuple(_EVENTS.values())

    def compute(self, event_name: str, **kwargs: Any) -> Any:
        best, step = self.memory, kwargs["step"]
        if event_name == "on_evaluate" and best.step != step:
            best.count_evaluation()
        if (number := self.new_value(event_name, kwargs["values"], step)) is not None:
            best.offer(number, step, self._mode, min_delta=self._min_delta, is_relative=self._is_relative)
        if best.value is None:
            return None
        return {
            "value": best.value,
            "step": best.step,
            "steps_since": best.steps_since(step),
            "evaluations_since": best.evaluations_since,
        }
