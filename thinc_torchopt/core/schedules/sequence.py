"""Several schedules in a row."""

from collections.abc import Iterator
from itertools import chain, repeat
from numbers import Real
from typing import Any, Dict, Optional, Tuple

from ..errors import ScheduleError
from ..schema import check_names, read
from ..types import FloatOrSchedule
from .schedule import try_to_load, warmup_of
from .to_the_end import Arguments, Cooldown, is_waiting


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
    in_a_row: Dict[str, SequencePart] = {}
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
        if steps is not None and is_waiting(part["schedule"]):
            part["schedule"].set_total_steps(steps)  # type: ignore[union-attr]
        in_a_row[name] = SequencePart(steps, *_values(check, f"{path}.schedule", part["schedule"]))
    return SequenceSchedule(in_a_row)


def _values(check: Arguments, name: str, source: Any) -> Tuple[Any, Iterator[Any], Any]:
    """The source of the values of a number, a list or a schedule; an iterator over its values; the first value."""
    if isinstance(source, Real):
        source = repeat(source)
    if is_waiting(source):
        return source, source, source.value
    values = iter(source) if isinstance(source, (list, Iterator)) else iter(())
    first = next(values, None)
    if not isinstance(first, Real) or isinstance(first, bool):
        check.refuse(name, "a number, or a list or schedule of numbers", source if first is None else first)
    return values, chain([first], values), first


class SequenceSchedule(Iterator[float]):
    """The schedule of `sequence`.

    parts (Dict[str, SequencePart]): The parts in their order, by name.
    """

    def __init__(self, parts: Dict[str, "SequencePart"]):
        self._parts = parts
        self._waiting = iter(parts.values())
        self._part = next(self._waiting)
        self._steps_done = 0
        self._is_over = False

    @property
    def value(self) -> float:
        value: float = self._part.value
        return value

    @property
    def metric(self) -> str:
        """The watched score of the part that gave the last value."""
        return getattr(self._part.source, "metric", "score")

    @property
    def _last(self) -> "SequencePart":
        return list(self._parts.values())[-1]

    @property
    def spans_training(self) -> bool:
        """Whether the last part ends with the training."""
        return self._last.steps is None and getattr(self._last.source, "spans_training", False)

    @property
    def total_steps(self) -> Optional[int]:
        """The length of the training, if it is known."""
        own = self._last.source.total_steps if self.spans_training else None
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
        self._last.source.set_total_steps(total_steps - self._steps_before)

    @property
    def warmup_steps(self) -> int:
        """The end of the first warm-up, in steps of the sequence."""
        begin = 0
        for part in self._parts.values():
            if steps := warmup_of(part.source):
                return begin + min(steps, part.steps or steps)
            begin += part.steps or 0
        return 0

    @property
    def cooldown(self) -> Optional[Cooldown]:
        """The fall of the last part, if it has one. If the turn of that is yet to come, it begins at its first step."""
        return getattr(self._last.source, "cooldown", None)

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

    @property
    def watches_score(self) -> bool:
        """Whether any part does."""
        return any(hasattr(part.source, "observe") for part in self._parts.values())

    def observe(self, score: float) -> None:
        """Pass a score on to the part that gave the last value."""
        if not self._is_over:
            self._part.observe(score)

    def state_dict(self) -> Dict[str, Any]:
        """The states of the parts that have one, by name."""
        return {name: part.source.state_dict() for name, part in self._keepers().items()}

    def load_state_dict(self, state: Any) -> None:
        """Restore the states of the parts. First draw the values up to the saved position.

        RAISES (StateError): Not the state of a sequence with these parts. Nothing changes then.
        """
        what, keepers = "the state of the schedule 'thinc-torchopt.sequence.v1'", self._keepers()
        check_names(read(dict[str, Any], state, what), keepers, what)
        for name, part in keepers.items():
            try_to_load(part.source, state[name])
        for name, part in keepers.items():
            part.source.load_state_dict(state[name])

    def _keepers(self) -> Dict[str, "SequencePart"]:
        return {name: part for name, part in self._parts.items() if hasattr(part.source, "state_dict")}


class SequencePart:
    """One part of a sequence.

    steps (Optional[int]): Its length. None: it does not end.
    source (Iterator): Yields the value of each step.
    values (Iterator): All values.
    first (Any): The first value.
    """

    def __init__(self, steps: Optional[int], source: Any, values: Iterator[Any], first: Any):
        self.steps = steps
        self.source = source
        self._values = values
        self._drawn = first

    @property
    def value(self) -> Any:
        return self.source.value if hasattr(self.source, "value") else self._drawn

    def step(self) -> None:
        self._drawn = next(self._values, self._drawn)

    def observe(self, score: float) -> None:
        if hasattr(self.source, "observe"):
            self.source.observe(score)
