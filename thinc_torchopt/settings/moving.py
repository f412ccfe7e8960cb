"""The settings of the whole optimizer that schedules may move: `learn_rate` and `grad_clip`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from ..checks import check_number
from ..errors import ScheduleError, ScheduleWarning
from ..schedules import Schedule, Schedules, current
from ..types import FloatOrSchedule

# After this many updates in a row, a warning says that nobody moves the schedules.
IDLE_UPDATES = 50


class MovingSettings:
    """The values of this step.

    learn_rate, grad_clip (float | schedule): As in the config.
    RAISES (ConfigError): Not a number of at least 0. (ScheduleError): A schedule yields no such number.

    Public: `schedules` (all of [training.optimizer]), `step_count` (how often they moved).
    """

    def __init__(self, learn_rate: FloatOrSchedule, grad_clip: FloatOrSchedule):
        self.schedules = Schedules()
        self.step_count = 0
        self._idle_updates: float = 0
        self._values: dict[str, float] = {}
        self._moving: dict[str, Schedule] = {}
        for name, given in (("learn_rate", learn_rate), ("grad_clip", grad_clip)):
            tracked = self.schedules.track(name, given)
            if isinstance(tracked, Schedule):
                self._moving[name] = tracked
            self[name] = current(tracked)

    def __copy__(self) -> MovingSettings:
        """The same schedules, with values of its own."""
        other = MovingSettings.__new__(MovingSettings)
        other.__dict__.update(self.__dict__, _values=dict(self._values))
        return other

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __setitem__(self, name: str, value: float) -> None:
        """RAISES (ConfigError): Not a number of at least 0."""
        self._values[name] = check_number(name, value)

    def step(self) -> None:
        """Move every schedule on by one, each exactly once."""
        self._idle_updates = min(self._idle_updates, 0)
        self.step_count += 1
        self.schedules.step()
        self._read()

    def observe(self, scores: Mapping[str, Any]) -> None:
        """Pass the scores of an evaluation to the schedules that follow them."""
        self.schedules.observe(scores)
        self._read()

    def set_total_steps(self, total_steps: int, *, may_change: bool = False) -> None:
        """As `Schedules.set_total_steps`."""
        self.schedules.set_total_steps(total_steps, may_change=may_change)
        self._read()

    def begin_decay(self, decay_steps: int | None = None) -> bool:
        """As `TorchOptimizer.begin_decay`."""
        told = self.schedules.of_decay
        if not told:
            raise ScheduleError(
                "Can't begin the decay of [training.optimizer]: expected a schedule that can decay, found none. Set "
                "learn_rate to thinc-torchopt.warmup_stable_decay.v1."
            )
        begins = [schedule.begin_decay(decay_steps) for schedule in told]
        self._read()
        return any(begins)

    @property
    def decay_is_over(self) -> bool:
        """As `TorchOptimizer.decay_is_over`."""
        told = [schedule.source for schedule in self.schedules.of_decay if schedule.source.decay_was_told]
        return bool(told) and all(source.decay_is_over for source in told)

    def count_update(self) -> None:
        """Count an update at these values, and warn once if nobody moves the schedules."""
        self._idle_updates += 1
        if self._idle_updates != IDLE_UPDATES:
            return
        still = [name for name, schedule in self.schedules.by_name.items() if schedule.moves_with_steps]
        for name in still[:1]:
            value = self.schedules.by_name[name].value
            learns = ", so nothing is learned" if name == "learn_rate" and not value else ""
            warnings.warn(
                ScheduleWarning(
                    f"The schedule of '{name}' in [training.optimizer] stayed at {value:g} for {IDLE_UPDATES} updates "
                    f"in a row{learns}. A schedule moves on when optimizer.step_schedules() is called. spaCy's "
                    "training loop does that after each step. In a loop of your own, call it yourself. For spacy "
                    "pretrain, which never calls it, set a number."
                ),
                stacklevel=5,
            )
            self._idle_updates = -math.inf  # never again

    def _read(self) -> None:
        for name, schedule in self._moving.items():
            self[name] = schedule.value

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step_count, "settings": dict(self._values), "schedules": self.schedules.state_dict()}

    def load(self, values: Mapping[str, float], schedules: Mapping[str, Any], step: int) -> None:
        """Resume from a saved state.

        values (Mapping[str, float]): The values at that step.
        schedules (Mapping[str, Any]): The states of the schedules.
        step (int): The number of steps made.
        RAISES (StateError, ScheduleError): The state has other schedules. Nothing changes then.
        """
        self.schedules.load_state_dict(schedules, at_most=step)
        self.step_count, self._values = step, dict(values)
