"""A schedule that lowers a rate when the score stops improving."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, Literal, Optional

from ..checks import Section
from ..schema import Count, read, write
from .to_the_end import Arguments

Mode = Literal["max", "min"]
ThresholdMode = Literal["rel", "abs"]
_PART = "the least improvement as a part of the best score: at least 0 and below 1 (0.01 is 1%)"


def plateau(
    initial_rate: float,
    *,
    factor: float = 0.1,
    patience: int = 10,
    metric: str = "score",
    mode: Mode = "max",
    threshold: float = 1e-4,
    threshold_mode: ThresholdMode = "rel",
    cooldown: int = 0,
    min_rate: float = 0.0,
    eps: float = 1e-8,
) -> Iterator[float]:
    """Stay at a rate while the score improves, and lower it when it does not.

    Our training loop passes the scores to `observe`. Elsewhere, for example with thinc's own optimizers, the rate stays
    at `initial_rate`.

    factor (float): Multiplies the rate, at least 0 and below 1.
    patience (int): Evaluations in a row without improvement before the next one lowers the rate.
    metric (str): The name of the watched score, e.g. "ents_f". Default: the main score, weighted by
        [training.score_weights].
    mode ("max" | "min"): Whether a higher or a lower score is better.
    threshold (float): The smallest improvement that counts. As a fraction, it is below 1.
    threshold_mode ("rel" | "abs"): Whether `threshold` is a fraction of the best score, or a difference.
    cooldown (int): Evaluations after the rate was lowered that don't count as bad.
    min_rate (float): The lowest rate.
    eps (float): The rate is not lowered by less than this.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: torch.optim.lr_scheduler.ReduceLROnPlateau, whose mode is "min" by default. In both, NaN is no improvement.
        Here infinity is none either; there an infinitely good score stays the best, and the rate only falls.
    """
    check = Arguments("thinc-torchopt.plateau.v1")
    check.number("initial_rate", initial_rate)
    check.number("factor", factor, below=1.0)
    if not isinstance(metric, str) or not metric:
        check.refuse("metric", "the name of a score", metric)
    check.number("min_rate", min_rate, at_most=initial_rate)
    check.number("eps", eps)
    # No functions within functions: an optimizer is pickled with its schedules.
    lower = partial(lowered, factor=factor, lowest=min_rate, eps=eps)
    return PlateauSchedule(
        float(initial_rate),
        lower,
        check,
        mode=mode,
        patience=patience,
        threshold=threshold,
        threshold_mode=threshold_mode,
        cooldown=cooldown,
        metric=metric,
    )


def lowered(rate: float, *, factor: float, lowest: float, eps: float) -> float:
    """A rate times a factor, but not below the lowest one; the rate itself, if the difference is at most `eps`."""
    new = max(rate * factor, lowest)
    return new if rate - new > eps else rate


class PlateauSchedule(Iterator[float]):
    """The schedule of `plateau`: its value moves with the scores, not with the step.

    value (float): The current value.
    lower (Callable): Computes the next value.
    check (Section): Checks the other arguments, which are those of `plateau`.

    Public: `metric`, `value`, `reductions` (how often it was lowered), `best` (the best score so far, or None), `bad`
        (evaluations in a row without improvement), `cooling` (evaluations left of the cooldown).
    """

    moves_with_steps = False

    def __init__(
        self,
        value: float,
        lower: Callable[[float], float],
        check: Section,
        *,
        mode: Mode,
        patience: int,
        threshold: float,
        threshold_mode: ThresholdMode,
        cooldown: int,
        metric: str,
    ):
        self.metric = metric
        self.value = self._initial_value = value
        self.reductions = 0
        self.best: Optional[float] = None
        self.bad = 0
        self.cooling = 0
        self._lower = lower
        self._sign = 1 if check.choice("mode", mode, ("max", "min")) == "max" else -1
        self._is_part = check.choice("threshold_mode", threshold_mode, ("rel", "abs")) == "rel"
        # With 1 no loss is ever below the best one, and a score must be twice as high.
        expected, limit = (_PART, 1.0) if self._is_part else (None, math.inf)
        self._threshold = check.number("threshold", threshold, expected, below=limit)
        self._patience = check.whole("patience", patience)
        self._cooldown = check.whole("cooldown", cooldown)
        self._what = f"the state of {check.path}"

    def _is_better(self, score: float) -> bool:
        if self.best is None or not math.isfinite(score):
            return math.isfinite(score)
        sign, threshold = self._sign, self._threshold
        least = self.best * (1.0 + sign * threshold) if self._is_part else self.best + sign * threshold
        return sign * score > sign * least

    def __next__(self) -> float:
        return self.value

    def observe(self, score: float) -> None:
        """Lower the value if too many evaluations brought no improvement. score (float): Of an evaluation."""
        score = float(score)
        if self._is_better(score):
            self.best = score
            self.bad = 0
        else:
            self.bad += 1
        if self.cooling > 0:
            self.cooling -= 1
            self.bad = 0
        if self.bad > self._patience:
            self._reduce()
            self.cooling = self._cooldown
            self.bad = 0

    def _reduce(self) -> bool:
        before, self.value = self.value, self._lower(self.value)
        self.reductions += self.value != before
        return self.value != before

    def state_dict(self) -> Dict[str, Any]:
        return write(PlateauState(self.reductions, self.best, self.bad, self.cooling))

    def load_state_dict(self, state: Any) -> None:
        """Resume from a saved state: the initial value is lowered as often as before, even if the config has another.

        RAISES (StateError): Not the state of a plateau schedule. Nothing changes then.
        """
        saved = read(PlateauState, state, self._what)
        self.value, self.reductions = self._initial_value, 0
        while self.reductions < saved.reductions and self._reduce():
            pass
        self.best, self.bad, self.cooling = saved.best, saved.bad_evaluations, saved.cooldown_left


@dataclass
class PlateauState:
    """The saved form of a plateau schedule. best (Optional[float]): None: before the first score."""

    reductions: Count
    best: Optional[float]
    bad_evaluations: Count
    cooldown_left: Count
