"""Several schedules in a row."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Dict, Optional

from ..schema import check_names, read
from ..types import FloatOrSchedule
from .arguments import Arguments
from .schedule import try_to_load


def sequence(parts: Dict[str, Dict[str, FloatOrSchedule]]) -> Iterator[float]:
    """Several schedules in a row. Each begins at its own step 0 when its turn comes, and sees scores only while it
    lasts.

    parts (Dict[str, Dict]): By a name of your choice, in their order in the config: `steps`, how many steps it lasts,
        and `schedule`, a schedule, a number, or a list. The last part may leave out `steps`: it goes on. A list that
        ends before its part, or a last part whose steps are over, stays at its last value.
    RAISES (ScheduleError): A part lacks one of the two, has something else, or its schedule yields no number.
    SOURCE: torch.optim.lr_scheduler.SequentialLR.
    """
    check = Arguments("thinc-torchopt.sequence.v1")
    if not isinstance(parts, dict) or not parts:
        check.refuse("parts", "a section with at least one part", parts)
    in_a_row: Dict[str, Part] = {}
    for i, (name, part) in enumerate(parts.items()):
        path = f"parts.{name}"
        is_last = i == len(parts) - 1
        if not isinstance(part, dict) or not {"schedule"} <= set(part) <= {"steps", "schedule"}:
            check.refuse(
                path, "a section with 'steps' and 'schedule'", sorted(part) if isinstance(part, dict) else part
            )
        if "steps" not in part and not is_last:
            check.refuse(path, "a section with 'steps', as only the last part goes on without", sorted(part))
        if "steps" in part:
            check.whole(f"{path}.steps", part["steps"], at_least=1)
        in_a_row[name] = Part(part.get("steps"), *check.values(f"{path}.schedule", part["schedule"]))  # type: ignore[arg-type]

    return SequenceSchedule(in_a_row)


class SequenceSchedule(Iterator[float]):
    """What `sequence` returns.

    parts (Dict[str, Part]): The parts in their order, by name.
    """

    def __init__(self, parts: Dict[str, "Part"]):
        self._parts = parts
        self._waiting = iter(parts.values())
        self._part = next(self._waiting)
        self._steps_done = 0
        self._is_over = False

    @property
    def value(self) -> float:
        return self._part.value

    def __next__(self) -> float:
        if self._steps_done == self._part.steps:
            following = next(self._waiting, None)
            if following is None:
                self._is_over = True
                return self.value
            self._part = following
            self._steps_done = 0
        self._steps_done += 1
        self._part.step()
        return self.value

    def observe(self, score: float) -> None:
        """Pass a score on to the part that gave the last value."""
        if not self._is_over:
            self._part.observe(score)

    def state_dict(self) -> Dict[str, Any]:
        """The states of the parts that keep one, by name."""
        return {name: part.source.state_dict() for name, part in self._keepers().items()}

    def load_state_dict(self, state: Any) -> None:
        """Give the parts their states back. Draw the values up to the same position before.

        RAISES (StateError): Not the state of a sequence with these parts. Nothing was changed.
        """
        what, keepers = "the state of the schedule 'thinc-torchopt.sequence.v1'", self._keepers()
        check_names(read(dict[str, Any], state, what), keepers, what)
        for name, part in keepers.items():
            try_to_load(part.source, state[name])
        for name, part in keepers.items():
            part.source.load_state_dict(state[name])

    def _keepers(self) -> Dict[str, "Part"]:
        return {name: part for name, part in self._parts.items() if hasattr(part.source, "state_dict")}


class Part:
    """One part of a sequence.

    steps (Optional[int]): How many it lasts. None: it goes on.
    source (Iterator): Yields the value of each step.
    first (Any): Its first value, which was drawn when the config was checked.
    """

    def __init__(self, steps: Optional[int], source: Iterator[Any], first: Any):
        self.steps = steps
        self.source: Any = source
        self._values = chain([first], source)
        self._drawn = first

    @property
    def value(self) -> Any:
        return self.source.value if hasattr(self.source, "observe") else self._drawn

    def step(self) -> None:
        self._drawn = next(self._values, self._drawn)

    def observe(self, score: float) -> None:
        if hasattr(self.source, "observe"):
            self.source.observe(score)
