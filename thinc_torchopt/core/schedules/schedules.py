"""All schedules of an optimizer. A source that is used in several places is one schedule, and moves once a step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from ..checks import Section, check_number
from ..errors import ScheduleError, ScheduleWarning
from ..schema import check_names, read, refuse
from ..types import FloatOrSchedule
from .schedule import Schedule, current
from .to_the_end import StableDecay, is_waiting, refuse_without_end

# After this many updates in a row, a warning says that nobody moves the schedules.
IDLE_UPDATES = 50
_RATES = ("learn_rate", "lr_scale")  # the ends of the places of learning rates


class Schedules:
    """All schedules of an optimizer by their places in the config, and the values of its own settings at this step.

    settings (float | schedule): Settings of the whole optimizer, `learn_rate` and `grad_clip`, as in the config.
    RAISES (ConfigError): A setting is not a number of at least 0. (ScheduleError): A schedule yields no such number.

    Public: `by_name` (the schedules by place), `step_count` (how often they moved).
    """

    def __init__(self, **settings: FloatOrSchedule):
        self.by_name: dict[str, Schedule] = {}
        self.step_count = 0
        self._by_source: dict[int, Schedule] = {}
        self._idle_updates: float = 0
        self._parts: set[Hashable] = set()
        self._given = {name: self.track(name, given) for name, given in settings.items()}
        self._set_by_hand: dict[str, float] = {}
        self._check()

    def __copy__(self) -> Schedules:
        """The same schedules, with values of its own that are set by hand."""
        other = Schedules.__new__(Schedules)
        other.__dict__.update(self.__dict__, _set_by_hand=dict(self._set_by_hand), _parts=set())
        return other

    def __getitem__(self, setting: str) -> float:
        by_hand = self._set_by_hand.get(setting)
        return float(current(self._given[setting])) if by_hand is None else by_hand

    def __setitem__(self, setting: str, value: float) -> None:
        """Set a value by hand. In place of a schedule it holds until the next step.

        RAISES (ConfigError): Not a number of at least 0.
        """
        self._set_by_hand[setting] = check_number(setting, value)

    def _check(self) -> None:
        for setting, given in self._given.items():
            check_number(setting, current(given))

    def track(self, name: str, value: Any) -> Any:
        """Replace a list or iterator by a Schedule.

        name (str): The place of the value in the config, e.g. "learn_rate" or "algorithm.weight_decay".
        value (Any): A number, or a list or iterator of numbers. A tuple may hold any of these. Other values are left
            alone.
        RETURNS (Any): The value, with a Schedule in place of each list or iterator.
        """
        if isinstance(value, tuple):
            return tuple(self.track(f"{name}.{i}", item) for i, item in enumerate(value))
        if isinstance(value, list):
            value = iter(value)
        if not isinstance(value, Iterator):
            return value
        schedule = self._by_source.get(id(value))
        if schedule is None:
            schedule = self._by_source[id(value)] = Schedule(name, value)
        self.by_name[name] = schedule
        return schedule

    # ------------------------------------------------------------------ steps and scores

    def step(self) -> None:
        """Move every schedule on by one, each exactly once."""
        self._idle_updates = min(self._idle_updates, 0)
        self.step_count += 1
        for schedule in self._by_source.values():
            schedule.step()
        self._set_by_hand = {name: value for name, value in self._set_by_hand.items() if name not in self.by_name}
        self._check()

    def count_update(self, part: Hashable | None = None) -> None:
        """Count an update at these values, and warn once if nobody moves the schedules.

        part (Hashable | None): What was updated by itself: an update is over once the same part comes again.
        """
        if part is not None:
            if part not in self._parts:
                self._parts.add(part)
                return
            self._parts = {part}
        self._idle_updates += 1
        if self._idle_updates != IDLE_UPDATES:
            return
        still = [name for name, schedule in self.by_name.items() if schedule.moves_with_steps]
        for name in still[:1]:
            value = self.by_name[name].value
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

    def observe(self, scores: Mapping[str, Any]) -> None:
        """Pass the scores of an evaluation to every schedule that watches one, once each.

        scores (Mapping[str, Any]): Of the model after the last step, when the schedules have already moved on to the
            next one. By name; the main one is "score".
        """
        for schedule in self._by_source.values():
            schedule.observe(scores)
        self._check()

    # ------------------------------------------------------------------ the length of the training

    @property
    def span_training(self) -> bool:
        """Whether any schedule ends with the training."""
        return any(schedule.spans_training for schedule in self._by_source.values())

    def set_total_steps(self, total_steps: Any, *, may_change: bool = False) -> None:
        """Set the length of the training for schedules that span it.

        may_change (bool): Also change a length that was set before.
        RAISES (ScheduleError): Their parts don't fit. (StateError): Another length was set before.
        """
        total = Section("the training").whole("total_steps", total_steps, at_least=1)
        for schedule in self._by_source.values():
            before = schedule.total_steps
            if not schedule.spans_training or before == total:
                continue
            if not may_change:
                schedule.check_total_steps(total)
            elif before is not None:
                warnings.warn(
                    ScheduleWarning(
                        f"The schedule of '{schedule.name}' continues at step {schedule.position} of a training of "
                        f"{total:,} steps. Before, the training had {before:,}."
                    ),
                    stacklevel=3,
                )
            schedule.set_total_steps(total)
        self._check()

    def check_end_is_known(self) -> None:
        """RAISES (ScheduleError): A schedule ends with the training, and does not know its length."""
        for name, schedule in self.by_name.items():
            if is_waiting(schedule.source):
                refuse_without_end(f"of '{name}' in [training.optimizer]")

    @property
    def warmup_steps(self) -> int:
        """The number of steps before the last warm-up of a learning rate is over."""
        of_rates = (name for name in self.by_name if name.endswith(_RATES) or name.startswith("per_param_lr."))
        return max((self.by_name[name].warmup_steps for name in of_rates), default=0)

    # ------------------------------------------------------------------ falls at will

    @property
    def cooldowns(self) -> list[StableDecay]:
        """The falls that may begin at will."""
        return [schedule.cooldown for schedule in self._by_source.values() if schedule.cooldown is not None]

    def begin_decay(self, decay_steps: int | None = None) -> bool:
        """As `TorchOptimizer.begin_decay`."""
        if not self.cooldowns:
            raise ScheduleError(
                "Can't begin the decay of [training.optimizer]: expected a schedule that can decay, found none. Set "
                "learn_rate to thinc-torchopt.warmup_stable_decay.v1."
            )
        begins = [schedule.begin_decay(decay_steps) for schedule in self._by_source.values()]
        return any(begins)

    @property
    def decay_is_over(self) -> bool:
        """As `TorchOptimizer.decay_is_over`."""
        begun = [cooldown for cooldown in self.cooldowns if cooldown.begun_at_will]
        return bool(begun) and all(cooldown.is_over for cooldown in begun)

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """The states of all schedules by config path, and the settings that were set by hand, else None, for JSON.
        Places that share a schedule have the same state.
        """
        states = {name: schedule.state_dict() for name, schedule in self.by_name.items()}
        settings = {**dict.fromkeys(self._given), **self._set_by_hand}
        return {"step": self.step_count, "settings": settings, "schedules": states}

    def check_state(self, schedules: Any, step: int) -> None:
        """Check that `load` can load these, without loading them. RAISES: As `load`."""
        what = "the state of the schedules of [training.optimizer]"
        check_names(read(dict[str, Any], schedules, what), self.by_name, what)
        for name, schedule in self.by_name.items():
            schedule.check_state_dict(schedules[name])
            position = schedules[name]["position"]
            if position > step:
                refuse(what, f"{name}/position", f"at most {step}, the steps of the run", str(position))
            if schedules[name] != schedules[schedule.name]:
                refuse(what, name, f"as '{schedule.name}', with which it shares a schedule", "another state")

    def load(self, settings: Mapping[str, float | None], schedules: Any, step: int) -> None:
        """Resume from a saved state. Everything is checked before a schedule moves. Values in the config count, also if
        they have changed, except where one was set by hand.

        settings, schedules, step: The parts of `state_dict`, of the same config. No schedule can be ahead of the step.
        RAISES (StateError): It has other config paths, or a state can't be loaded. (ScheduleError): A state is of an
            earlier step.
        """
        self.check_state(schedules, step)
        for schedule in self._by_source.values():
            schedule.load_state_dict(schedules[schedule.name])
        self.step_count = step
        self._set_by_hand = {name: value for name, value in settings.items() if value is not None}
