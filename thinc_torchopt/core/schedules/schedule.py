"""A value that moves with the step.

*source*: a number, a list of numbers, or one of thinc's schedules, which are generators. *schedule*: a source that
moves, with its current value and position.

Some sources watch a score or span the training: __init__.py describes their methods.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import getgeneratorlocals
from types import GeneratorType
from typing import Any

from ..errors import ScheduleError, ScheduleWarning, StateError
from ..near_misses import did_you_mean
from ..schema import Count, Positive, read, refuse, write
from .to_the_end import StableDecay, is_waiting


class Schedule:
    """One moving value.

    name (str): Its place in the config, for messages.
    source (Iterator): Yields the value of each step.
    RAISES (ScheduleError): The source yields nothing, or not a number.
    """

    def __init__(self, name: str, source: Any):
        self.name = name
        self.source: Any = source
        self.position = 0
        self._ended = False
        if isinstance(source, GeneratorType) and any(map(is_waiting, getgeneratorlocals(source).values())):
            raise ScheduleError(
                f"Can't use the schedule of '{name}': expected total_steps in the schedule inside of another one, such "
                "as constant_then.v1, found none. Set it; or use thinc-torchopt.sequence.v1, which knows the end of "
                "the training."
            )
        if is_waiting(source):
            self.refresh()
            return
        try:
            first = next(source)
        except StopIteration:
            raise ScheduleError(
                f"Can't use the schedule of '{name}': expected at least one value, found none. Either the list is "
                "empty, or the schedule was used up before. Give each training run a schedule of its own."
            ) from None
        self.value = self._check(first)

    def __getstate__(self) -> dict[str, Any]:
        """RAISES (ScheduleError): Its source can't be copied."""
        if isinstance(self.source, GeneratorType):
            raise ScheduleError(
                f"Can't copy or pickle the schedule of '{self.name}' in [training.optimizer]: expected a number, a "
                "list of numbers or a schedule that can be copied, found a generator, as thinc's schedules are. Build "
                "another optimizer from the config, and load this one's state with load_state_dict."
            )
        return self.__dict__

    def step(self) -> None:
        """Move on by one. At the end of the source the last value stays, as in thinc."""
        had_ended = self._ended
        self._advance()
        if self._ended and not had_ended:
            warnings.warn(
                ScheduleWarning(
                    f"The schedule of '{self.name}' ended after {self.position} steps. Its last value, {self.value}, "
                    "stays from here on. If that is not intended, use a schedule that lasts for all of [training] "
                    "max_steps."
                ),
                stacklevel=2,
            )

    def move_to(self, position: int) -> None:
        """Restart at a step. A source that ends on the way gives no warning: the run that was saved gave it.

        position (int): The step, counted from 0.
        RAISES (ScheduleError): The step is over: a source can't go back.
        """
        self._check_position(position)
        if is_waiting(self.source):
            self.position = position  # it moves there when it knows its end
        while self.position < position:
            self._advance()

    @property
    def moves_with_steps(self) -> bool:
        """Whether its value may change from step to step: not that of thinc's `constant`, nor one that scores alone
        move.
        """
        return getattr(self.source, "__name__", "") != "constant" and getattr(self.source, "moves_with_steps", True)

    @property
    def spans_training(self) -> bool:
        """Whether its source ends with the training."""
        return bool(getattr(self.source, "spans_training", False))

    @property
    def total_steps(self) -> int | None:
        """The length of the training, if the source spans it and knows it."""
        return self.source.total_steps if self.spans_training else None

    def set_total_steps(self, total_steps: int) -> None:
        """Set the length of the training, for a source that spans it. One that knew another length goes on at the
        current step of the new curve.

        RAISES (ScheduleError): It doesn't fit.
        """
        steps_to_draw = self.position + 1 if is_waiting(self.source) else 0
        self.source.set_total_steps(total_steps)
        for _ in range(steps_to_draw):
            next(self.source)
        self.refresh()

    def check_total_steps(self, total_steps: int | None) -> None:
        """RAISES (StateError): Another length was set before."""
        if self.total_steps is not None and total_steps is not None and total_steps != self.total_steps:
            raise StateError(
                f"Can't continue the schedule of '{self.name}' in [training.optimizer]: expected a training of "
                f"{self.total_steps:,} steps, as when it began, found one of {total_steps:,} (max_steps and step 0). "
                "Without total_steps, the schedule ends where the training ends. Restore its length. Or set "
                'on_config_change = "warn" in [training.optimizer.checkpoint]: then the rate follows the curve of the '
                f"new length, or with total_steps = {self.total_steps} in the schedule, that of the old one."
            )

    @property
    def warmup_steps(self) -> int:
        """The number of steps of its warm-up. 0: it has none, or does not tell. A generator, such as thinc's
        warmup_linear, has them as an argument.
        """
        source = self.source
        known = getgeneratorlocals(source) if isinstance(source, GeneratorType) else {}
        found = known.get("warmup_steps", getattr(source, "warmup_steps", 0))
        return int(found) if isinstance(found, (int, float)) else 0

    @property
    def cooldown(self) -> StableDecay | None:
        """The fall of its source that may begin at will, if it has one."""
        return getattr(self.source, "cooldown", None)

    def begin_decay(self, decay_steps: int | None = None) -> bool:
        """Begin its cooldown, if it has one. RETURNS (bool): False if it had begun before."""
        begins = self.cooldown is not None and self.cooldown.begin(decay_steps)
        self.refresh()
        return begins

    @property
    def metric(self) -> str:
        """The name of the watched score."""
        return getattr(self.source, "metric", "score")

    @property
    def watches_score(self) -> bool:
        """Whether its source watches a score."""
        return bool(getattr(self.source, "watches_score", hasattr(self.source, "observe")))

    def observe(self, scores: Mapping[str, Any]) -> None:
        """Pass the watched score to the source, if it watches one. The position stays; the value of the next step may
        change.

        scores (Mapping[str, Any]): By name; the main one is "score".
        RAISES (ScheduleError): No such score, or not a number.
        """
        if not hasattr(self.source, "observe") or self._ended:
            return
        metric = self.metric
        try:
            score = float(scores[metric])
        except (KeyError, TypeError, ValueError):
            numbers = sorted(name for name, found in scores.items() if isinstance(found, (int, float)))
            found = f"{type(scores[metric]).__name__}" if metric in scores else "none of that name"
            raise ScheduleError(
                f"Can't use the schedule of '{self.name}': expected the watched score '{metric}' to be a number, found "
                f"{found}. The numbers of the evaluation are: {', '.join(numbers)}."
                f"{did_you_mean(metric, numbers)}"
            ) from None
        self.source.observe(score)
        self.refresh()

    def state_dict(self) -> dict[str, Any]:
        """The position, and the state of the source if it has one, for JSON."""
        source = self.source.state_dict() if self._keeps_state else None
        return write(ScheduleState(self.position, self.total_steps, source))

    def check_state_dict(self, state: Any) -> None:
        """Check that a state can be loaded, without loading it.

        RAISES (StateError): Not the state of such a schedule. (ScheduleError): It is of an earlier step.
        """
        what = f"the state of the schedule of '{self.name}'"
        saved = read(ScheduleState, state, what)
        if (saved.source is not None) != self._keeps_state:
            refuse(what, "source", "the state of a schedule" if self._keeps_state else "None", "another schedule")
        self._check_position(saved.position)
        self.check_total_steps(saved.total_steps)
        if self._keeps_state:
            try:
                try_to_load(self.source, saved.source)
            except StateError as error:
                raise StateError(f"{error} This is the schedule of '{self.name}'.") from error

    @property
    def _keeps_state(self) -> bool:
        return hasattr(self.source, "state_dict")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state.

        state (dict): From `state_dict`.
        RAISES (StateError, ScheduleError): As `check_state_dict`. Nothing changes then.
        """
        self.check_state_dict(state)
        if is_waiting(self.source) and state["total_steps"] is not None:
            self.set_total_steps(state["total_steps"])
        self.move_to(state["position"])
        if self._keeps_state:
            self.source.load_state_dict(state["source"])
        self.refresh()

    def refresh(self) -> float:
        """Take the value of a source that may change it between steps. RETURNS (float): The value."""
        if hasattr(self.source, "observe") or self.cooldown is not None or self.spans_training:
            self.value = self._check(self.source.value)
        return self.value

    def _advance(self) -> None:
        self.position += 1
        if self._ended:
            return
        try:
            value = next(self.source)
        except StopIteration:
            self._ended = True
        else:
            self.value = self._check(value)

    def _check_position(self, position: Any) -> None:
        if not isinstance(position, int) or position < self.position:
            raise ScheduleError(
                f"Can't move the schedule of '{self.name}': expected a step of at least {self.position}, its current "
                f"one, found {position!r}. Schedules only move forwards: build a new optimizer."
            )

    def _check(self, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ScheduleError(
                f"Can't use the schedule of '{self.name}' at step {self.position}: expected a number, found {value!r}."
            ) from None


@dataclass
class ScheduleState:
    """The saved form of a schedule.

    total_steps (int | None): Of the training, if it spans that.
    source (Any): The state of its source, if that has one.
    """

    position: Count
    total_steps: Positive | None
    source: Any


def try_to_load(source: Any, state: Any) -> None:
    """Find out whether a source can load a state, without changing it. RAISES (Exception): It can't."""
    before = source.state_dict()
    try:
        source.load_state_dict(state)
    finally:
        source.load_state_dict(before)


def current(value: Any) -> Any:
    """The value of this step: of a schedule, of a tuple with schedules, or of anything else."""
    if isinstance(value, Schedule):
        return value.value
    if isinstance(value, tuple):
        return tuple(current(item) for item in value)
    return value


def is_moving(value: Any) -> bool:
    """Whether a value is a schedule, or a tuple with one."""
    return isinstance(value, Schedule) or (isinstance(value, tuple) and any(map(is_moving, value)))
