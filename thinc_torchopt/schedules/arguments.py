"""What is checked of the arguments of schedules when the config is read, and of their saved states."""

import math
from collections.abc import Iterable, Iterator
from itertools import repeat
from numbers import Integral, Real
from typing import Any, List, Tuple

from ..errors import ScheduleError


class Arguments:
    """Checks the arguments of one schedule. confection lets numbers in quotes pass, and generators in the place of anything.

    label (str): What the config calls the schedule.
    what_failed (str): What can't be done with it if one of them is wrong.
    """

    def __init__(self, label: str, what_failed: str = "build"):
        self.label = label
        self.what_failed = what_failed

    def refuse(self, name: str, expected: str, found: Any) -> None:
        raise ScheduleError(f"Can't {self.what_failed} the schedule '{self.label}': expected '{name}' to be {expected}, found {found!r}.")

    def number(
        self,
        name: str,
        value: Any,
        *,
        at_least: float = 0.0,
        at_most: float = math.inf,
        above: float = -math.inf,
        below: float = math.inf,
    ) -> None:
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not (is_number and at_least <= value <= at_most and above < value < below):
            low = f"above {above:g}" if above > -math.inf else f"of at least {at_least:g}" if at_least > -math.inf else "that is finite"
            high = f" and at most {at_most:g}" if at_most < math.inf else f" and below {below:g}" if below < math.inf else ""
            self.refuse(name, f"a number {low}{high}", value)

    def steps(self, name: str, value: Any, *, at_least: int = 0, because: str = "") -> None:
        if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
            self.refuse(name, f"a whole number of at least {at_least}{because}", value)

    def warmup(self, warmup_steps: Any, total_steps: Any, decay_steps: int = 0) -> None:
        self.steps("warmup_steps", warmup_steps)
        used = warmup_steps + decay_steps
        because = "" if not used else " (warmup_steps + decay_steps)" if decay_steps else " (warmup_steps)"
        self.steps("total_steps", total_steps, at_least=max(1, used), because=because)

    def choice(self, name: str, value: Any, choices: List[str]) -> None:
        if value not in choices:
            self.refuse(name, "one of " + ", ".join(f"'{choice}'" for choice in choices), value)

    def section(self, name: str, value: Any, keys: Iterable[str]) -> None:
        if not isinstance(value, dict) or set(value) != set(keys):
            self.refuse(name, f"a section with {sorted(keys)}", sorted(value) if isinstance(value, dict) else value)

    def values(self, name: str, source: Any) -> Tuple[Iterator[Any], Any]:
        """An iterator over the values of a number, a list or a schedule, and the first of them, which was drawn."""
        if isinstance(source, Real):
            source = repeat(source)
        values = iter(source) if isinstance(source, (list, Iterator)) else iter(())
        first = next(values, None)
        if not isinstance(first, Real) or isinstance(first, bool):
            self.refuse(name, "a number, or a list or schedule of numbers", source if first is None else first)
        return values, first
