"""What is checked of the arguments of schedules when the config is read."""

from typing import Any, NoReturn

from ..checks import Section
from ..errors import ScheduleError


class Arguments(Section):
    """Checks the arguments of one schedule. confection lets numbers in quotes pass, and generators in the place of
    anything.

    label (str): What the config calls the schedule.
    """

    def __init__(self, label: str):
        super().__init__(label, allows_texts=False)

    def refuse(self, name: str, expected: str, found: Any, advice: str = "") -> NoReturn:
        """RAISES (ScheduleError): Always."""
        raise ScheduleError(
            f"Can't build the schedule '{self.path}': expected '{name}' to be {expected}, found {found!r}."
        )
