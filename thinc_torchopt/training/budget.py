"""Training within a budget: the learning rate stays constant, and falls in time to end with the budget.

    used   0 ------------------- 0.4 ----- 0.5 ------------------ 0.8 -------- 1
    rate   ‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾\\________ |‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾\\____________
                                 checkpoint, and back to it      checkpoint

Each fall begins at a checkpoint, which is kept. A *mark* is a part of the budget at which a finished model is wanted:
after the fall the model is evaluated, then params and optimizer go back to where the fall began. Step, data and log
continue, as after a rollback. The last fall ends the run.

The length of a fall is decided when it begins, from the *cost* of steps and evaluations so far, in the unit of the
budget. Seconds are the running time of the loop, with evaluations and saving; they are part of the checkpoint. A
finished run continues from its last stable checkpoint if its budget is raised.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spacy.language import Language

from ..errors import ConfigError, RollbackError, StateError
from ..optimizers import TorchOptimizer
from ..schema import AnyNumber, Count, NotNegative, read, write
from ..types import BudgetSettings
from .checkpoint import RunCheckpoints
from .checkpoint_folder import name_of, read_checkpoint
from .events import Control, Evaluate, Event, Save, StepBegin, StepEnd, TrainBegin
from .model_state import check_model, restore_model
from .progress import Progress
from .ranks import Alone

T = TypeVar("T")

logger = logging.getLogger("spacy.torchopt")

# Weight of a step in the mean cost, relative to the step after it.
_MEMORY = 0.98


@dataclass
class Cost:
    """The cost of one step or evaluation: an exponential mean."""

    total: NotNegative = 0.0
    weight: NotNegative = 0.0

    def add(self, cost: float) -> None:
        self.total = _MEMORY * self.total + max(0.0, cost)
        self.weight = _MEMORY * self.weight + 1.0

    @property
    def mean(self) -> float:
        return self.total / self.weight if self.weight else 0.0


@dataclass
class Reached:
    """A finished fall. end (float): Its planned end. used (float): Its actual end. step (int): Its last step.
    score (float | None): The score after it. None: there was no fall, as the checkpoint could not be written.
    """

    end: NotNegative
    used: NotNegative
    step: Count
    score: AnyNumber | None


@dataclass
class BudgetState:
    """The saved state of a budget.

    unit (str): Unit of all amounts.
    base (int | None): Step of the checkpoint where the current fall begins. None after going back to it.
    falls_to (float): Planned end of that fall.
    is_falling (bool): Whether that fall has begun and is not over.
    reached (list): The finished falls.
    last_end (float | None): An earlier end of the run, if one was requested.
    step_cost, eval_cost (Cost): Cost of an update; of an evaluation, with the saving after it.
    """

    unit: str
    base: Count | None = None
    falls_to: NotNegative = 0.0
    is_falling: bool = False
    reached: list[Reached] = field(default_factory=list)
    last_end: NotNegative | None = None
    step_cost: Cost = field(default_factory=Cost)
    eval_cost: Cost = field(default_factory=Cost)


def check_ends_alone(settings: BudgetSettings, *, patience: int, max_steps: int, max_epochs: int | None) -> None:
    """RAISES (ConfigError): Another setting may end the training first, at the full learning rate."""
    is_later = settings.unit == "steps" and max_steps + 1 >= settings.limit
    others = {"patience": patience, "max_steps": 0 if is_later else max_steps, "max_epochs": max(0, max_epochs or 0)}
    found = [f"{name} = {value}" for name, value in others.items() if value]
    if found:
        raise ConfigError(
            f"Can't train with [training.optimizer.budget] and {', '.join(found)} in [training]: the training could "
            f"end before the learning rate falls. Set {'it' if len(found) == 1 else 'them'} to 0."
        )


class BudgetKeeper:
    """Lowers learning rates in time for a budget, goes back after the falls at marks, and ends the run. A listener; it
    must come before that of checkpoints.


    settings (BudgetSettings): From the config.
    nlp (Language), optimizer (TorchOptimizer), progress (Progress), ranks (Alone): The run's.
    checkpoints (RunCheckpoints): The run's.
    eval_frequency (int): The run's.
    """

    name = "budget"

    def __init__(
        self,
        settings: BudgetSettings,
        nlp: Language,
        optimizer: TorchOptimizer,
        progress: Progress,
        checkpoints: RunCheckpoints,
        ranks: Alone,
        *,
        eval_frequency: int,
    ):
        self._settings = settings
        self._nlp = nlp
        self._optimizer = optimizer
        self._progress = progress
        self._checkpoints = checkpoints
        self._ranks = ranks
        self._eval_frequency = eval_frequency
        self._state = BudgetState(settings.unit)
        self._goes_back_at_once = False
        self._began = self._ended = 0.0
        self._was_evaluated = False

    # ------------------------------------------------------------------ the falls

    @property
    def _ends(self) -> list[float]:
        """The planned ends of the current fall and those to come."""
        settings, state = self._settings, self._state
        if state.last_end is not None:
            return [state.last_end]
        over = state.reached[-1].end if state.reached else 0.0
        return [end for mark in (*settings.marks, 1.0) if (end := settings.limit * mark) > over]

    @property
    def _ends_run(self) -> bool:
        return len(self._ends) <= 1

    def end_now(self, event: StepEnd) -> None:
        """End the run with the current fall, or with one that begins now."""
        if self._state.last_end is None:
            used = self._used(event, done=event.step + 1)
            falls_to = used / max(1.0 - self._settings.decay_ratio, 0.5)
            self._state.last_end = min(self._agreed(falls_to), self._settings.limit)

    def on_train_begin(self, event: TrainBegin, control: Control) -> None:
        if self._goes_back_at_once:
            self._goes_back_at_once = False
            logger.info("Budget: it was raised. Back to the checkpoint of step %d.", self._state.base)
            self._go_back()
        self._began = self._ended = self._used(event, done=event.step + 1)

    def on_step_begin(self, event: StepBegin, control: Control) -> None:
        state = self._state
        may_fall = state.base == event.step - 1 and not state.is_falling
        if may_fall:
            self._checkpoints.wait()  # for the checkpoint to which it may go back
        now = self._used(event, done=event.step)
        if self._was_evaluated:
            state.eval_cost.add(now - self._ended)
        elif state.step_cost.weight:
            state.step_cost.total += max(0.0, now - self._ended)  # drawing the batch, logging
        self._was_evaluated = False
        self._began = now
        if may_fall:
            steps = self._steps_of_fall(now)
            is_there = self._ranks.from_rank_0(lambda: self._checkpoints.newest == state.base)
            if self._ends_run or (steps and is_there):
                self._begin_fall(now, max(1, steps))
            else:
                logger.info("Budget: no time for a fall at %s.", self._shown(self._ends[0]))
                state.reached.append(Reached(self._ends[0], now, event.step - 1, None))
                self._stay()

    def on_step_end(self, event: StepEnd, control: Control) -> None:
        state = self._state
        self._ended = used = self._used(event, done=event.step + 1)
        state.step_cost.add(used - self._began)
        if self._is_base_gone:
            logger.info("Budget: a rollback went back past the start of the fall, which starts again.")
            self._optimizer.cancel_decay()
            self._stay()
        if not state.is_falling:
            end = self._ends[0]
            if self._agreed(used + self._cost_of_fall(event.step, end) >= end):
                state.base, state.falls_to = event.step, end
                self._checkpoints.held = {event.step}
                control.should_save = True
        elif self._optimizer.decay_is_over:
            control.should_evaluate = True
            control.should_stop |= self._ends_run

    def _cost_of_fall(self, after: int, end: float) -> float:
        """The cost of a fall to `end` that begins after a step, with its evaluations."""
        cost = max(self._settings.decay_ratio * end, self._state.step_cost.mean)
        return cost + self._cost_of_evaluations(after, int(cost / (self._state.step_cost.mean or cost)))

    def _cost_of_evaluations(self, after: int, steps: int) -> float:
        """The cost of evaluations in `steps` steps after a step. The last of them is always evaluated."""
        before_last = (after + max(1, steps) - 1) // self._eval_frequency - after // self._eval_frequency
        return self._state.eval_cost.mean * (before_last + 1)

    def _steps_of_fall(self, used: float) -> int:
        """The steps of a fall that begins now. 0: evaluations would use most of its time."""
        state, left, after = self._state, self._ends[0] - used, self._state.base or 0
        if self._settings.unit == "steps":
            return max(0, int(left))
        per_step = state.step_cost.mean or left
        steps = int(left / per_step)
        while steps > 0 and steps * per_step + self._cost_of_evaluations(after, steps) > left:
            steps -= 1
        is_long = steps * per_step > 0.5 * self._settings.decay_ratio * self._ends[0]
        return self._agreed(max(0, steps) if is_long or self._ends_run else 0)

    def _begin_fall(self, used: float, steps: int) -> None:
        state = self._state
        state.is_falling = True
        self._optimizer.begin_decay(steps)
        logger.info(
            "Budget: %s used after step %d. The learning rate falls in %s%s.",
            self._shown(used),
            state.base,
            "1 step" if steps == 1 else f"{steps:,} steps",
            ", and the training ends" if self._ends_run else "; then it goes back to where it is now",
        )

    def on_evaluate(self, event: Evaluate, control: Control) -> None:
        self._was_evaluated = True
        state = self._state
        if state.is_falling and self._optimizer.decay_is_over:
            used = self._agreed(self._used(event, done=event.step + 1))
            end = self._settings.limit if self._ends_run else self._ends[0]
            state.reached.append(Reached(end, used, event.step, float(event.score)))
            state.is_falling, state.last_end = False, None

    def on_save(self, event: Save, control: Control) -> None:
        if not self._has_fallen_at(event.step) or not self._ends:
            return
        reached, base = self._state.reached[-1], self._state.base
        self._go_back()
        logger.info(
            "Budget: %s used. After the fall the score is %.4f. Back to the checkpoint of step %d, at the full rate.",
            self._shown(reached.used),
            reached.score,
            base,
        )

    def _has_fallen_at(self, step: int) -> bool:
        """Whether a fall ended with a step, and the params are still those after it."""
        state = self._state
        return bool(state.reached) and state.reached[-1].step == step and state.base is not None

    def _go_back(self) -> None:
        """Restore params and optimizer from where the fall began.

        RAISES (RollbackError): The checkpoint is gone, or the model has grown since.
        """
        path = self._checkpoints.folder / name_of(self._state.base or 0)
        self._checkpoints.wait()
        try:
            saved = self._ranks.from_rank_0(lambda: read_checkpoint(path))
            check_model(self._nlp, saved.model)
            self._optimizer.roll_back(saved.optimizer, lower_rates=False)
        except StateError as error:
            raise RollbackError(
                f"Can't go back to where the learning rate began to fall, '{path}': expected an undamaged checkpoint "
                f"of the same model, found another one, or none. Train without marks (--any-time), or start again in "
                f"another folder. ({error})"
            ) from error
        restore_model(self._nlp, saved.model)
        self._optimizer.cancel_decay()
        self._stay()

    @property
    def _is_base_gone(self) -> bool:
        """Whether a rollback went back past the start of the fall."""
        base, rollbacks = self._state.base, self._progress.rollbacks
        return base is not None and bool(rollbacks) and rollbacks[-1][1] < base <= rollbacks[-1][0]

    def _stay(self) -> None:
        """Reset: no fall is planned or under way."""
        self._state.base, self._state.is_falling = None, False
        self._checkpoints.held = set()

    # ------------------------------------------------------------------ usage

    def _used(self, event: Event, *, done: int) -> float:
        """The part of the budget that is used, in its unit. done (int): Number of finished steps."""
        if self._settings.unit == "seconds":
            return event.run.seconds
        return float(event.run.words if self._settings.unit == "words" else done)

    def _agreed(self, value: T) -> T:
        """Rank 0's value on all ranks, as clocks differ."""
        return self._ranks.from_rank_0(lambda: value) if self._settings.unit == "seconds" else value

    def _shown(self, used: float) -> str:
        if self._settings.unit != "seconds":
            return f"{used:,.0f} of {self._settings.limit:,.0f} {self._settings.unit}"
        return " of ".join(f"{seconds // 60:.0f}:{int(seconds) % 60:02}" for seconds in (used, self._settings.limit))

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        return write(self._state)

    def load_state_dict(self, saved: Any) -> None:
        """Resume. If the budget was raised during or after its last fall, the run goes back to where that fall began.

        RAISES (StateError): The state is invalid, or has another unit.
        """
        state = read(BudgetState, saved, "the state of the budget")
        if state.unit != self._settings.unit:
            raise StateError(
                f"Can't resume with this budget: expected a limit in {state.unit}, as before, found one in "
                f"{self._settings.unit}. The cost of steps was measured in {state.unit}. Change 'limit' in "
                "[training.optimizer.budget] (--budget), or start again in another folder."
            )
        self._state = state
        self._checkpoints.held = set() if state.base is None else {state.base}
        if self._has_fallen_at(self._progress.step):
            self._goes_back_at_once = bool(self._ends)
            self._progress.was_stopped &= not self._goes_back_at_once
        elif not self._ends:
            state.last_end = self._settings.limit  # lower than a mark that was reached
        elif state.base is not None and state.last_end is None and self._ends[0] > state.falls_to:
            self._goes_back_at_once = state.is_falling
            if not state.is_falling:
                self._stay()
