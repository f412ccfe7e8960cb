"""What is checked of the arguments of schedules when the config is read."""

from collections.abc import Iterator
from itertools import repeat
from numbers import Real
from typing import Any, NoReturn, Tuple

from ..checks import Section
from ..errors import ScheduleError


class Arguments(Section):
    """Checks the arguments of one schedule. confection lets numbers in quotes pass, and generators in the place of
    anything.

    label (str): What the config calls the schedule.
    """

    def __init__(self, label: str):
        super().__init__(label, takes_texts=False)

    def refuse(self, name: str, expected: str, found: Any, advice: str = "") -> NoReturn:
        """RAISES (ScheduleError): Always."""
        raise ScheduleError(
            f"Can't build the schedule '{self.path}': expected '{name}' to be {expected}, found {found!r}."
        )

    def warmup(self, warmup_steps: Any, total_steps: Any, decay_steps: int = 0) -> None:
        self.whole("warmup_steps", warmup_steps)
        used = warmup_steps + decay_steps
        because = "" if not used else " (warmup_steps + decay_steps)" if decay_steps else " (warmup_steps)"
        self.whole("total_steps", total_steps, at_least=max(1, used), because=because)

    def values(self, name: str, source: Any) -> Tuple[Iterator[Any], Any]:
        """An iterator over the values of a number, a list or a schedule, and the first of them, which was drawn."""
        if isinstance(source, Real):
            source = repeat(source)
        values = iter(source) if isinstance(source, (list, Iterator)) else iter(())
        first = next(values, None)
        if not isinstance(first, Real) or isinstance(first, bool):
            self.refuse(name, "a number, or a list or schedule of numbers", source if first is None else first)
        return values, first
