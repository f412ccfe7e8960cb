"""Several schedules in a row."""

from collections.abc import Iterator
from itertools import repeat
from numbers import Real
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ..errors import ScheduleError
from ..schema import check_names, read
from ..types import FloatOrSchedule
from .schedule import Schedule, try_to_load
from .to_the_end import Arguments, StableDecay, is_waiting


def sequence(parts: Dict[str, Dict[str, FloatOrSchedule]]) -> Iterator[float]:
    """Several schedules in a row. Each starts at its own step 0 when its turn comes, and sees scores only during its
    turn.

    parts (Dict[str, Dict]): The parts by name, in order. Each has `steps`, its length, and `schedule`, a schedule, a
        number or a list. The last part may omit `steps`: it does not end. A list that ends before its part stays at its
        last value, and so does a last part with `steps`.
    RAISES (ScheduleError): A part lacks one of the two or has another key, or its schedule yields something else than
        numbers.
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
            check.refuse(path, "a section with 'steps', which only the last part may leave out", sorted(part))
        if "steps" in part:
            check.whole(f"{path}.steps", part["steps"], at_least=1)
        steps: Any = part.get("steps")
        source: Any = part["schedule"]
        if isinstance(source, (Real, list)):
            source = iter(source) if isinstance(source, list) else repeat(source)
        if not isinstance(source, Iterator):
            check.refuse(f"{path}.schedule", "a number, or a list or schedule of numbers", source)
        in_a_row[name] = Part(steps, Schedule(f"{path}.schedule", source))
        if steps is not None and is_waiting(source):
            in_a_row[name].schedule.set_total_steps(steps)
    return SequenceSchedule(in_a_row)


class Part(NamedTuple):
    """A part of a sequence. steps (Optional[int]): Its length. None: it does not end."""

    steps: Optional[int]
    schedule: Schedule


class SequenceSchedule(Iterator[float]):
    """The schedule of `sequence`.

    parts (Dict[str, Part]): The parts in their order, by name.
    """

    def __init__(self, parts: Dict[str, Part]):
        self._parts = parts
        self._step = -1  # of the last value

    def _turn(self, step: int) -> Tuple[Schedule, int, bool]:
        """The schedule of a step, the step in it, and whether all parts are over."""
        for steps, schedule in self._parts.values():
            if steps is None or step < steps:
                return schedule, step, False
            step, last_step = step - steps, steps - 1
        return schedule, last_step, True

    @property
    def _now(self) -> Schedule:
        return self._turn(max(0, self._step))[0]

    @property
    def value(self) -> float:
        return self._now.refresh()

    @property
    def metric(self) -> str:
        """The watched score of the part that gave the last value."""
        return self._now.metric

    @property
    def _last(self) -> Part:
        return list(self._parts.values())[-1]

    @property
    def spans_training(self) -> bool:
        """Whether the last part ends with the training."""
        return self._last.steps is None and self._last.schedule.spans_training

    @property
    def total_steps(self) -> Optional[int]:
        """The length of the training, if it is known."""
        own = self._last.schedule.total_steps
        return None if own is None else self._steps_before + own

    @property
    def _steps_before(self) -> int:
        return sum(part.steps or 0 for part in list(self._parts.values())[:-1])

    def set_total_steps(self, total_steps: int) -> None:
        """RAISES (ScheduleError): The training ends before the last part begins."""
        if total_steps <= self._steps_before:
            raise ScheduleError(
                "Can't use the schedule 'thinc-torchopt.sequence.v1': expected a training that is longer than the "
                f"{self._steps_before:,} steps of the parts before the last one, found one of {total_steps:,} steps. "
                "Train for longer, or shorten these parts."
            )
        self._last.schedule.set_total_steps(total_steps - self._steps_before)

    @property
    def warmup_steps(self) -> int:
        """The end of the first warm-up, in steps of the sequence."""
        begin = 0
        for part in self._parts.values():
            if steps := part.schedule.warmup_steps:
                return begin + min(steps, part.steps or steps)
            begin += part.steps or 0
        return 0

    @property
    def cooldown(self) -> Optional[StableDecay]:
        """The fall of the last part, if it has one. If the turn of that is yet to come, it begins at its first step."""
        return self._last.schedule.cooldown

    def __next__(self) -> float:
        self._step += 1
        schedule, step, _ = self._turn(self._step)
        schedule.move_to(step)
        return self.value

    @property
    def watches_score(self) -> bool:
        """Whether any part does."""
        return any(part.schedule.watches_score for part in self._parts.values())

    def observe(self, score: float) -> None:
        """Pass a score on to the part that gave the last value."""
        schedule, _, is_over = self._turn(max(0, self._step))
        if not is_over:
            schedule.observe({schedule.metric: score})

    def state_dict(self) -> Dict[str, Any]:
        """The states of the parts that have one, by name."""
        return {name: schedule.source.state_dict() for name, schedule in self._keepers().items()}

    def load_state_dict(self, state: Any) -> None:
        """Restore the states of the parts. First draw the values up to the saved position.

        RAISES (StateError): Not the state of a sequence with these parts. Nothing changes then.
        """
        what, keepers = "the state of the schedule 'thinc-torchopt.sequence.v1'", self._keepers()
        check_names(read(dict[str, Any], state, what), keepers, what)
        for name, schedule in keepers.items():
            try_to_load(schedule.source, state[name])
        for name, schedule in keepers.items():
            schedule.source.load_state_dict(state[name])

    def _keepers(self) -> Dict[str, Schedule]:
        return {
            name: part.schedule for name, part in self._parts.items() if hasattr(part.schedule.source, "state_dict")
        }
