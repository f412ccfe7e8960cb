"""Checks of the arguments of schedules when the config is read."""

from typing import Any, NoReturn

from ..checks import Section
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
