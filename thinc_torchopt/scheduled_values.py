"""Values that move with the step.

*source*: what the config gives: a number, a list of numbers, or one of thinc's schedules, which are generators.
*schedule*: a source that moves, with its current value and position. A source that stands in several places is one
schedule, and moves once a step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

from .errors import ConfigError, ScheduleError, ScheduleWarning


class Schedule:
    """One moving value.

    name (str): Where it stands in the config, for messages.
    source (Iterator): Yields the value of each step.
    RAISES (ScheduleError): The source yields nothing, or no number.
    """

    def __init__(self, name: str, source: Iterator[Any]):
        self.name = name
        self.source = source
        self.position = 0
        self._ended = False
        try:
            first = next(source)
        except StopIteration:
            raise ScheduleError(
                f"Can't use the schedule of '{name}': expected at least one value, found none. Either the list is empty, "
                "or the schedule was used up before. Give each training run a schedule of its own."
            ) from None
        self.value = self._check(first)

    def step(self) -> None:
        """Move on by one. At the end of the source the last value stays, as in thinc."""
        if self._ended:
            return
        try:
            value = next(self.source)
        except StopIteration:
            self._ended = True
            warnings.warn(
                ScheduleWarning(
                    f"The schedule of '{self.name}' ended after {self.position + 1} steps. Its last value, {self.value}, "
                    "stays from here on. If that is not meant, use a schedule that lasts for all of [training] max_steps."
                ),
                stacklevel=2,
            )
            return
        self.position += 1
        self.value = self._check(value)

    def _check(self, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ScheduleError(
                f"Can't use the schedule of '{self.name}' at step {self.position}: expected a number, found {value!r}."
            ) from None


class Schedules:
    """All schedules of an optimizer, by the places in which they stand."""

    def __init__(self) -> None:
        self.by_name: dict[str, Schedule] = {}
        self._by_source: dict[int, Schedule] = {}

    def track(self, name: str, value: Any) -> Any:
        """Make a schedule of a value that is one.

        name (str): Where the value stands in the config, e.g. "learn_rate" or "algorithm.weight_decay".
        value (Any): A number, or a list or iterator of numbers. A tuple may hold any of these. Others are left alone.
        RETURNS (Any): The value, with a Schedule in the place of each list or iterator.
        """
        if isinstance(value, tuple):
            return tuple(self.track(f"{name}.{i}", item) for i, item in enumerate(value))
        if isinstance(value, list):
            value = iter(value)
        if not isinstance(value, Iterator):
            return value
        schedule = self._by_source.get(id(value))
        if schedule is None:
            schedule = self._by_source[id(value)] = Schedule(name, value)
        self.by_name[name] = schedule
        return schedule

    def step(self) -> None:
        """Move every schedule on by one, each exactly once."""
        for schedule in self._by_source.values():
            schedule.step()


def current(value: Any) -> Any:
    """The value of this step: of a schedule, of a tuple that holds some, or of anything else."""
    if isinstance(value, Schedule):
        return value.value
    if isinstance(value, tuple):
        return tuple(current(item) for item in value)
    return value


def is_moving(value: Any) -> bool:
    """Whether a value is a schedule, or a tuple that holds one."""
    return isinstance(value, Schedule) or (isinstance(value, tuple) and any(map(is_moving, value)))


def check_number(name: str, value: Any) -> float:
    """Check a setting that must be a number of at least 0.

    name (str): Its config path below [training.optimizer].
    value (Any): What the config or a schedule gives.
    RETURNS (float): The number.
    RAISES (ConfigError): It is none, or negative, or not finite.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise ConfigError(
            f"Can't set '{name}' in [training.optimizer]: expected a number of at least 0, or a schedule of such, found {value!r}."
        )
    return number
