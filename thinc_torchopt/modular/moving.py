"""Options of param groups that are schedules, in a loop of one's own. In a config, TorchOptimizer does this."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import ConfigError, ScheduleError
from ..schedules import Schedule, Schedules, is_waiting
from .schedulers import RoundSchedule, is_spec

Groups = Sequence[dict[str, Any]]


class MovingOptions:
    """Writes the values of schedules into param groups.

    schedules (Schedules): By the option, "lr", or by that of one param group, "lr of param group 1".
    """

    def __init__(self) -> None:
        self.schedules = Schedules("Modular")
        self._lists: dict[Schedule, list[Any]] = {}  # the values of schedules that are lists
        self._followed: dict[tuple[int, str], Schedule] = {}  # by the place of a param group, and the option
        self._written: dict[tuple[int, str], float] = {}

    def first_value(self, name: str, value: Any) -> Any:
        """The value of an option in the first step. A schedule is tracked.

        RAISES (ConfigError): It is no schedule: it has no values, or is none of declearn's.
        """
        tracked = self.schedules.track(name, RoundSchedule(name, value) if is_spec(value) else value)
        if not isinstance(tracked, Schedule):
            return value
        if isinstance(value, list) and not isinstance(tracked, RoundSchedule):
            self._lists[tracked] = list(value)
        return tracked.value

    def keep(self, key: str, schedule: Schedule | None, groups: Groups) -> None:
        """Let an option of all param groups follow one schedule, or none."""
        places = [name for name in self.schedules.by_name if name == key or name.startswith(f"{key} of ")]
        self.schedules.drop(*places)
        if schedule is not None:
            self.schedules.track(key, schedule)
        for place, group in enumerate(groups):
            self.follow(place, group, key, key)

    def follow(self, place: int, group: dict[str, Any], key: str, name: str) -> None:
        """Let an option of a param group follow the schedule of that name, if there is one."""
        schedule = self.schedules.by_name.get(name)
        if schedule is None:
            self._followed.pop((place, key), None)
        else:
            self._followed[place, key], self._written[place, key] = schedule, group[key]

    def begin_step(self, groups: Groups) -> Iterable[int]:
        """Write the values of a step. RETURNS (Iterable[int]): The places of changed param groups.

        RAISES (ConfigError): Somebody else wrote there. (ScheduleError): A schedule does not know its end.
        """
        for name, schedule in self.schedules.by_name.items():
            if is_waiting(schedule.source):
                raise ScheduleError(
                    f"Can't use the schedule of '{name}' in Modular: expected its total_steps, found none. Set it, or "
                    "call optimizer.schedules.set_total_steps before the first step."
                )
        for place, key in self._followed:
            found, written = groups[place][key], self._written[place, key]
            if found != written and not math.isnan(written):
                raise ConfigError(
                    f"Can't make a step with Modular: {key} of param group {place} follows a schedule, and was set to "
                    f"{found} beside it. To replace the schedule, set optimizer.{key}; with torch's schedulers, give a "
                    "number instead of the schedule."
                )
        self.write(groups)
        return {place for place, _ in self._followed}

    def write(self, groups: Groups) -> None:
        """Write the present values."""
        for (place, key), schedule in self._followed.items():
            groups[place][key] = self._written[place, key] = schedule.value

    def end_step(self, groups: Groups) -> None:
        """Move on."""
        self.schedules.step()
        self.write(groups)

    def start_round(self, groups: Groups) -> None:
        """Begin a round: declearn's schedulers count it."""
        for schedule in {id(schedule): schedule for schedule in self.schedules.by_name.values()}.values():
            if isinstance(schedule, RoundSchedule):
                schedule.start_round()
        self.write(groups)

    def get_config(self, name: str, value: Any) -> Any:
        """An option in a config. value (Any): Its value, if it is no schedule.

        RAISES (ConfigError): JSON can't hold it.
        """
        schedule = self.schedules.by_name.get(name)
        if isinstance(schedule, RoundSchedule):
            return schedule.curve.get_config()
        if schedule is not None and schedule not in self._lists:
            raise ConfigError(
                f"Can't make a config of Modular: '{name}' is a schedule, which JSON can't hold. In Python, build the "
                "optimizer with another one. A list of numbers, and a scheduler of declearn by its name, can be saved."
            )
        return float(value) if schedule is None else self._lists[schedule]
