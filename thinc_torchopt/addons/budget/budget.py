"""Training within a budget: the learning rate stays constant, and falls in time to end with the budget.

    used   0 ----------------------------------------------- 0.8 -------- 1
    rate   ‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾\\____________

The length of the fall is decided when it begins, from the *cost* of steps and evaluations so far, in the unit of the
budget. Seconds are the running time of the loop, with evaluations and saving; they are part of the checkpoint.

Evaluations come by `eval_frequency`, and also so often that there are eight within the budget: `model-best` is chosen
from them. They take at most about half of it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar

from ...core.attachments import Attachment
from ...core.checks import Section
from ...core.errors import ConfigError, StateError
from ...core.log import inform
from ...core.schema import NotNegative, read, write

if TYPE_CHECKING:  # and not before a run begins: it takes torch
    from ...loop.events import Control, Evaluate, Event, StepBegin, StepEnd, TrainBegin
    from ...loop.run import Run

T = TypeVar("T")

_SECTION = Section("[training.optimizer.budget]")
Unit = Literal["seconds", "steps", "words"]

_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_TIMES: Final = {"": 1, "k": 1_000, "M": 1_000_000}
_TIME: Final = re.compile(r"(?:\d+(?:\.\d+)?[dhms]\s*)+")
_COUNT: Final = re.compile(r"((?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?)\s*([kM]?)\s*(step|word)s?")
EXPECTED: Final = 'a time such as "20m", "1h30m" or "90s", or "5000 steps", or "1.5M words"'


@dataclass
class Budget(Attachment):
    """End the training after a time or a number of steps or words, and lower the learning rate in time. Registered as
    `thinc-torchopt.Budget.v1`.

    Needs a learning rate that is a `warmup_stable_decay` with `decay_begins = "when told"`.

    limit (str): A time such as "20m", "1h30m" or "90s", with evaluations and saving; or a number of updates or words,
        such as "5000 steps" or "2M words".
    decay_ratio (float): Part of the limit in which the rate falls, above 0 and up to 1.
    RAISES (ConfigError): An argument is out of its range.

    Public: `amount` and `unit` (of the limit).
    """

    made_by: ClassVar[str] = (
        'a block with @misc = "thinc-torchopt.Budget.v1", or in Python the result of thinc_torchopt.training.Budget()'
    )
    plans_decay: ClassVar[bool] = True
    may_change: ClassVar[bool] = True
    own_block: ClassVar[str] = "budget"
    decides_alike: ClassVar[bool] = True

    limit: str
    _: KW_ONLY
    decay_ratio: float = 0.2

    def __post_init__(self) -> None:
        self.amount, self.unit = read_limit(self.limit, _SECTION)
        self.decay_ratio = _SECTION.number("decay_ratio", self.decay_ratio, above=0.0, at_most=1.0)

    def check(self, optimizer: Any) -> None:
        if not optimizer.can_begin_decay:
            raise ConfigError(
                f"Can't use {_SECTION.path}: expected a schedule that can decay, found none. Set learn_rate to "
                "thinc-torchopt.warmup_stable_decay.v1, or let a command do it: spacy torchopt train --budget."
            )

    def join(self, run: Any) -> Sequence[Any]:
        return [BudgetKeeper(self, run)]

    def count_evaluations(self, steps: int, eval_frequency: int) -> int:
        """How often a training is evaluated whose budget is used up after so many steps, if that costs nothing."""
        return _count_evaluations(0, steps, eval_frequency, math.ceil(_MOST_BETWEEN * steps), 1)


def read_limit(limit: str, section: Section, name: str = "limit") -> tuple[float, Unit]:
    """Parse a limit into amount and unit.

    section (Section), name (str): The setting, for errors.
    RAISES (ConfigError): It is neither a time nor a number of steps or words, or it is too small.
    """
    text = limit.strip() if isinstance(limit, str) else ""
    amount, unit = 0.0, "seconds"
    if _TIME.fullmatch(text):
        amount = sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)([dhms])", text))
    elif found := _COUNT.fullmatch(text):
        # As floats, 4.1 times a million is no whole number.
        amount, unit = float(Decimal(found[1].replace(",", "")) * _TIMES[found[2]]), f"{found[3]}s"
    if amount < 1 or (unit != "seconds" and amount % 1):
        section.refuse(name, EXPECTED, limit)
    if unit == "steps" and amount < 2:
        section.refuse(name, "at least 2 steps: the rate falls after the first", limit)
    return amount, unit  # type: ignore[return-value]


# ---------------------------------------------------------------------- the fall

# Weight of a step in the mean cost, relative to the step after it.
_MEMORY = 0.98
# Evaluations come after this part of the budget at the latest: with the last one, there are eight or more.
_MOST_BETWEEN = 1 / 9


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
class BudgetState:
    """The saved state of a budget.

    unit (str): Unit of all amounts.
    fell_for (float | None): The limit when the fall began. None: it has not begun.
    end (float | None): An earlier end of the run, if one was requested.
    evaluated_at (float): What was used when the last evaluation began.
    step_cost, eval_cost (Cost): Cost of an update; of an evaluation, with the saving after it.
    """

    unit: str
    fell_for: NotNegative | None = None
    end: NotNegative | None = None
    evaluated_at: NotNegative = 0.0
    step_cost: Cost = field(default_factory=Cost)
    eval_cost: Cost = field(default_factory=Cost)


def check_ends_alone(settings: Budget, run: Run) -> None:
    """RAISES (ConfigError): Another setting may end the training first, at the full learning rate."""
    is_later = settings.unit == "steps" and run.max_steps + 1 >= settings.amount
    others = {
        "patience": run.patience,
        "max_steps": 0 if is_later else run.max_steps,
        "max_epochs": max(0, run.batches.max_epochs or 0),
    }
    found = [f"{name} = {value}" for name, value in others.items() if value]
    if found:
        raise ConfigError(
            f"Can't train with [training.optimizer.budget] and {', '.join(found)} in [training]: the training could "
            f"end before the learning rate falls. Set {'it' if len(found) == 1 else 'them'} to 0."
        )


class BudgetKeeper:
    """Lowers learning rates in time for a budget. The run ends with the fall: see loop/signals.py. A listener.

    settings (Budget): From the config.
    run (Run): The run.
    RAISES (ConfigError): Another setting may end the run first.
    """

    name = "budget"

    def __init__(self, settings: Budget, run: Run):
        check_ends_alone(settings, run)
        self._settings = settings
        self._optimizer = run.optimizer
        self._ranks = run.ranks
        self._eval_frequency = run.eval_frequency
        run.cooldown.begin = self.end_now
        self._state = BudgetState(settings.unit)
        self._began = self._ended = 0.0
        self._was_evaluated = self._is_due = False

    # ------------------------------------------------------------------ the fall

    @property
    def _end(self) -> float:
        return self._settings.amount if self._state.end is None else self._state.end

    def end_now(self, event: StepEnd) -> None:
        """End the run with a fall that begins now, unless it has begun."""
        if self._state.end is None:
            used = self._used(event, done=event.step + 1)
            falls_to = used / max(1.0 - self._settings.decay_ratio, 0.5)
            self._state.end = min(self._agreed(falls_to), self._settings.amount)

    def on_train_begin(self, event: TrainBegin, control: Control) -> None:
        self._began = self._ended = self._used(event, done=event.step + 1)

    def on_step_begin(self, event: StepBegin, control: Control) -> None:
        state, end = self._state, self._end
        now = self._used(event, done=event.step)
        is_known = state.step_cost.weight > 0
        if self._was_evaluated:
            state.eval_cost.add(now - self._ended)
        elif is_known:
            state.step_cost.total += max(0.0, now - self._ended)  # drawing the batch, logging
        self._was_evaluated = False
        self._began = now
        falls = False
        if is_known:
            is_due = now + state.step_cost.mean - state.evaluated_at >= self._between
            falls, self._is_due = self._agreed((now + self._cost_of_fall(end) >= end, is_due))
        if state.fell_for is None and falls:
            steps = self._steps_of_fall(event.step, now, end)
            state.fell_for = self._settings.amount
            self._optimizer.begin_decay(steps)
            inform(
                "Budget: %s used after step %d. The learning rate falls in %s, and the training ends.",
                self._shown(now, self._settings.amount),
                event.step - 1,
                "1 step" if steps == 1 else f"{steps:,} steps",
            )

    def on_step_end(self, event: StepEnd, control: Control) -> None:
        self._ended = self._used(event, done=event.step + 1)
        self._state.step_cost.add(self._ended - self._began)
        if self._is_due:
            control.should_evaluate = True

    def on_evaluate(self, event: Evaluate, control: Control) -> None:
        self._was_evaluated = True
        self._state.evaluated_at = self._ended

    @property
    def _between(self) -> float:
        """The most that may be used from one evaluation to the next."""
        return max(_MOST_BETWEEN * self._end, 2 * self._state.eval_cost.mean)

    def _cost_of_fall(self, end: float) -> float:
        """The cost of a fall to `end`, with its evaluations: its part of the budget, or if that is too short, a step
        with an evaluation, and another that may come before it can begin.
        """
        steps, evaluations = self._state.step_cost, self._state.eval_cost
        least = 2 * (steps.mean + evaluations.mean) if evaluations.mean else steps.mean
        return max(self._settings.decay_ratio * end, least)

    def _cost_of_evaluations(self, first: int, steps: int, now: float) -> float:
        """The cost of evaluations in `steps` steps from a step on."""
        cost, per_step = self._state.eval_cost.mean, self._state.step_cost.mean
        if not cost:
            return 0.0
        frequency, between = self._eval_frequency, self._between

        def until_due(since: float) -> int:
            return max(1, math.ceil((between - since) / per_step)) if per_step else frequency

        until_next = until_due(now - self._state.evaluated_at)
        return cost * _count_evaluations(first, steps, frequency, until_due(cost), until_next)

    def _steps_of_fall(self, first: int, now: float, end: float) -> int:
        """The steps of a fall to `end` that begins with a step. now (float): What is used."""
        left = end - now
        if self._settings.unit == "steps":
            return max(1, int(left))
        per_step = self._state.step_cost.mean or left

        def cost(steps: int) -> float:
            return steps * per_step + self._cost_of_evaluations(first, steps, now)

        steps = bisect_right(range(1, int(left / per_step) + 1), left, key=cost)  # more steps never cost less
        return self._agreed(max(1, steps))

    # ------------------------------------------------------------------ usage

    def _used(self, event: Event, *, done: int) -> float:
        """The part of the budget that is used, in its unit. done (int): Number of finished steps."""
        if self._settings.unit == "seconds":
            return event.run.seconds
        return float(event.run.words if self._settings.unit == "words" else done)

    def _agreed(self, value: T) -> T:
        """Rank 0's value on all ranks, as clocks differ."""
        return self._ranks.from_rank_0(lambda: value) if self._settings.unit == "seconds" else value

    def _shown(self, *amounts: float) -> str:
        if self._settings.unit != "seconds":
            return f"{' of '.join(f'{amount:,.0f}' for amount in amounts)} {self._settings.unit}"
        return " of ".join(f"{seconds // 60:.0f}:{int(seconds) % 60:02}" for seconds in amounts)

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        return write(self._state)

    def load_state_dict(self, saved: Any) -> None:
        """RAISES (StateError): The state is invalid, or has another unit; or the fall has begun, and the limit was
        changed since.
        """
        state = read(BudgetState, saved, "the state of the budget")
        if state.unit != self._settings.unit:
            raise StateError(
                f"Can't resume with this budget: expected a limit in {state.unit}, as before, found one in "
                f"{self._settings.unit}. The cost of steps was measured in {state.unit}. Change 'limit' in "
                "[training.optimizer.budget] (--budget), or start again in another folder."
            )
        if state.fell_for not in (None, self._settings.amount):
            raise StateError(
                f"Can't resume with this budget: expected a limit of {self._shown(state.fell_for)}, as when the "
                f"learning rate began to fall, found {self._shown(self._settings.amount)}. After a fall there is no "
                "way back to the full rate. Restore 'limit' in [training.optimizer.budget] (--budget), or begin a new "
                "run in another folder."
            )
        self._state = state


def _count_evaluations(first: int, steps: int, frequency: int, gap: int, until_next: int) -> int:
    """How many of `steps` steps from a step on are evaluated. The last of them always is.

    gap (int): The most steps from one evaluation to the next. until_next (int): To the first of them.
    """
    last = first + max(1, steps) - 1
    begin = first + min(-first % frequency, until_next - 1)
    if begin >= last:
        return 1
    # From one evaluation on, the next ones come in equal gaps, which begin again at each multiple of the frequency.
    again = begin + frequency - begin % frequency
    periods, rest = divmod(max(0, last - again), frequency)
    return (
        math.ceil((min(again, last) - begin) / gap) + periods * math.ceil(frequency / gap) + math.ceil(rest / gap) + 1
    )
