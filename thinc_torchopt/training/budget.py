"""Training within a budget: the learning rate stays, and falls in time to end with the budget.

    used   0 ------------------- 0.4 ----- 0.5 ------------------ 0.8 -------- 1
    rate   ‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾\\________ |‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾\\____________
                                 checkpoint, and back to it      checkpoint

Each fall begins at a checkpoint, which stays. A *mark* is a part of the budget at which there is to be a model that has
fallen: as the fall is over, the model is evaluated, and params and optimizer go back to where it began. Step, data and
log go on, as after a rollback. The last fall ends the run.

How long a fall is, is decided when it begins, from what steps and evaluations took so far: *cost*, in the unit of the
budget. Seconds are those in which the loop runs, with evaluations and all that is saved; they are part of the
checkpoint. A run that is over goes on from its last stable checkpoint if its budget becomes larger.
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

# How much an older step counts beside the one before it.
_MEMORY = 0.98


@dataclass
class Cost:
    """What one of something takes: a mean in which the last ones count most."""

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
    """A fall that is over. end (float): Where it was to be over. used (float): Where it was. step (int): The last one.
    score (float | None): After that; None: there was no fall, as the checkpoint could not be written.
    """

    end: NotNegative
    used: NotNegative
    step: Count
    score: AnyNumber | None


@dataclass
class BudgetState:
    """What is saved.

    unit (str): In which all this is counted.
    base (int | None): The step of the checkpoint at which the last fall begins, or began; None after going back to it.
    falls_to (float): Where that fall is to be over.
    is_falling (bool): It has begun, and is not over.
    reached (list): The falls that are over.
    last_end (float | None): Somebody wants the run to end sooner: there.
    step_cost, eval_cost (Cost): Of an update; and of an evaluation with what is saved after it.
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
    """RAISES (ConfigError): Something else may end the training first, at the full learning rate."""
    is_later = settings.unit == "steps" and max_steps + 1 >= settings.limit
    others = {"patience": patience, "max_steps": 0 if is_later else max_steps, "max_epochs": max(0, max_epochs or 0)}
    found = [f"{name} = {value}" for name, value in others.items() if value]
    if found:
        raise ConfigError(
            "Can't train with [training.optimizer.budget]: expected nothing else that ends the training, found "
            f"{', '.join(found)} in [training]. The training could end before the learning rate falls. Set "
            f"{'it' if len(found) == 1 else 'them'} to 0."
        )


class BudgetKeeper:
    """Lets learning rates fall in time for a budget, goes back after the falls at marks, and ends the run. A listener,
    before that of checkpoints.

    settings (BudgetSettings): From the config.
    nlp (Language), optimizer (TorchOptimizer), progress (Progress), ranks (Alone): The run's.
    checkpoints (RunCheckpoints): The run's, which tell it to listeners.
    eval_frequency (int): Of the run.
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
        """Where the falls that come, or are under way, are to be over."""
        settings, state = self._settings, self._state
        if state.last_end is not None:
            return [state.last_end]
        over = state.reached[-1].end if state.reached else 0.0
        return [end for mark in (*settings.marks, 1.0) if (end := settings.limit * mark) > over]

    @property
    def _ends_run(self) -> bool:
        return len(self._ends) <= 1

    def end_now(self, event: StepEnd) -> None:
        """Somebody wants the run to end: with the fall under way, or one that begins now."""
        if self._state.last_end is None:
            used = self._used(event, done=event.step + 1)
            falls_to = used / max(1.0 - self._settings.decay_ratio, 0.5)
            self._state.last_end = min(self._agreed(falls_to), self._settings.limit)

    def on_train_begin(self, event: TrainBegin, control: Control) -> None:
        if self._goes_back_at_once:
            self._goes_back_at_once = False
            logger.info("Budget: the end is later now. Back to the checkpoint of step %d.", self._state.base)
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
                logger.info("Budget: no fall at %s, which leaves no time for it.", self._shown(self._ends[0]))
                state.reached.append(Reached(self._ends[0], now, event.step - 1, None))
                self._stay()

    def on_step_end(self, event: StepEnd, control: Control) -> None:
        state = self._state
        self._ended = used = self._used(event, done=event.step + 1)
        state.step_cost.add(used - self._began)
        if self._is_base_gone:
            logger.info("Budget: a rollback went to before the fall, which begins anew.")
            self._optimizer.take_back_decay()
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
        """What a fall to an end takes that begins after a step, with its evaluations."""
        cost = max(self._settings.decay_ratio * end, self._state.step_cost.mean)
        return cost + self._cost_of_evaluations(after, int(cost / (self._state.step_cost.mean or cost)))

    def _cost_of_evaluations(self, after: int, steps: int) -> float:
        """Of so many steps after a step, the last of which is evaluated in any case."""
        before_last = (after + max(1, steps) - 1) // self._eval_frequency - after // self._eval_frequency
        return self._state.eval_cost.mean * (before_last + 1)

    def _steps_of_fall(self, used: float) -> int:
        """How many steps a fall has that begins now. 0: evaluations would take most of its time."""
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
        """Whether a fall ended with a step, and params are those after it."""
        state = self._state
        return bool(state.reached) and state.reached[-1].step == step and state.base is not None

    def _go_back(self) -> None:
        """Params and optimizer become what they were where the fall began.

        RAISES (RollbackError): The checkpoint is not there any more, or the model has grown since.
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
                f"of the same model, found another one, or none. Train without marks (--any-time), or begin anew in "
                f"another folder. ({error})"
            ) from error
        restore_model(self._nlp, saved.model)
        self._optimizer.take_back_decay()
        self._stay()

    @property
    def _is_base_gone(self) -> bool:
        """Whether a rollback went further back than to where the fall began."""
        base, rollbacks = self._state.base, self._progress.rollbacks
        return base is not None and bool(rollbacks) and rollbacks[-1][1] < base <= rollbacks[-1][0]

    def _stay(self) -> None:
        """There is no fall now, and none begins."""
        self._state.base, self._state.is_falling = None, False
        self._checkpoints.held = set()

    # ------------------------------------------------------------------ what was used

    def _used(self, event: Event, *, done: int) -> float:
        """Of the budget. done (int): How many steps are."""
        if self._settings.unit == "seconds":
            return event.run.seconds
        return float(event.run.words if self._settings.unit == "words" else done)

    def _agreed(self, value: T) -> T:
        """The same on all ranks: clocks differ."""
        return self._ranks.from_rank_0(lambda: value) if self._settings.unit == "seconds" else value

    def _shown(self, used: float) -> str:
        if self._settings.unit != "seconds":
            return f"{used:,.0f} of {self._settings.limit:,.0f} {self._settings.unit}"
        return " of ".join(f"{seconds // 60:.0f}:{int(seconds) % 60:02}" for seconds in (used, self._settings.limit))

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        return write(self._state)

    def load_state_dict(self, saved: Any) -> None:
        """Go on. If the end is later now than that for which rates fell, all goes back to where that fall began.

        RAISES (StateError): It is of something else, or counted in another unit.
        """
        state = read(BudgetState, saved, "the state of the budget")
        if state.unit != self._settings.unit:
            raise StateError(
                f"Can't go on with the budget: expected a limit in {state.unit}, as before, found one in "
                f"{self._settings.unit}. What steps take is known in {state.unit}. Change 'limit' in "
                "[training.optimizer.budget] (--budget), or begin anew in another folder."
            )
        self._state = state
        self._checkpoints.held = set() if state.base is None else {state.base}
        if self._has_fallen_at(self._progress.step):
            self._goes_back_at_once = bool(self._ends)
            self._progress.was_stopped &= not self._goes_back_at_once
        elif not self._ends:
            state.last_end = self._settings.limit  # less than a mark that was reached
        elif state.base is not None and state.last_end is None and self._ends[0] > state.falls_to:
            self._goes_back_at_once = state.is_falling
            if not state.is_falling:
                self._stay()
