"""A schedule that lowers a rate when the score stops improving."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, Literal, Optional

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
    check.whole("patience", patience)
    if not isinstance(metric, str) or not metric:
        check.refuse("metric", "the name of a score", metric)
    check.choice("mode", mode, ["max", "min"])
    check.choice("threshold_mode", threshold_mode, ["rel", "abs"])
    # With 1 no loss is ever below the best one, and a score must be twice as high.
    is_part = threshold_mode == "rel"
    check.number("threshold", threshold, _PART if is_part else None, below=1.0 if is_part else math.inf)
    check.whole("cooldown", cooldown)
    check.number("min_rate", min_rate, at_most=initial_rate)
    check.number("eps", eps)
    # No functions within functions: an optimizer is pickled with its schedules.
    is_better = partial(_is_finite_and_better, comparison(mode, threshold, threshold_mode))
    lower = partial(_lowered, factor=factor, min_rate=min_rate, eps=eps)
    return PlateauSchedule(float(initial_rate), worst_score(mode), patience, cooldown, is_better, lower, metric)


def _is_finite_and_better(beats: Callable[[float, float], bool], score: float, best: float) -> bool:
    return math.isfinite(score) and beats(score, best)


def _lowered(rate: float, *, factor: float, min_rate: float, eps: float) -> float:
    lowered = max(rate * factor, min_rate)
    return lowered if rate - lowered > eps else rate


def comparison(mode: Mode, threshold: float, threshold_mode: ThresholdMode) -> Callable[[float, float], bool]:
    """A test whether a score improves on the best one. mode, threshold, threshold_mode: As in `plateau`."""
    return partial(_is_better, sign=1 if mode == "max" else -1, threshold=threshold, is_part=threshold_mode == "rel")


def _is_better(score: float, best: float, *, sign: int, threshold: float, is_part: bool) -> bool:
    least = best * (1.0 + sign * threshold) if is_part else best + sign * threshold
    return sign * score > sign * least


def worst_score(mode: Mode) -> float:
    """A value that any score improves on."""
    return -math.inf if mode == "max" else math.inf


class PlateauSchedule(Iterator[float]):
    """The schedule of `plateau`: its value moves with the scores, not with the step.

    value (float): The current value.
    worst (float): A value that any score improves on.
    patience (int): How many bad evaluations in a row it tolerates.
    cooldown (int): For this many evaluations after it was lowered, none is bad.
    is_better (Callable): Whether a score improves on the best one.
    lower (Callable): Computes the next value.
    metric (str): The name of the watched score.

    Public: `metric`, `value`, `reductions` (how often it was lowered), `best` (the best score so far), `bad`
        (evaluations in a row without improvement), `cooling` (evaluations left of the cooldown).
    """

    moves_with_steps = False

    def __init__(
        self,
        value: float,
        worst: float,
        patience: int,
        cooldown: int,
        is_better: Callable[[float, float], bool],
        lower: Callable[[float], float],
        metric: str = "score",
    ):
        self.metric = metric
        self.value = self._initial_value = value
        self.reductions = 0
        self._patience = patience
        self._cooldown = cooldown
        self._is_better = is_better
        self._lower = lower
        self.best = self._worst = worst
        self.bad = 0
        self.cooling = 0

    def __next__(self) -> float:
        return self.value

    def observe(self, score: float) -> None:
        """Lower the value if too many evaluations brought no improvement. score (float): Of an evaluation."""
        score = float(score)
        if self._is_better(score, self.best):
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
        """The state after the scores so far. `best` is None before the first score: JSON has no infinity."""
        best = self.best if math.isfinite(self.best) else None
        return write(PlateauState(self.reductions, best, self.bad, self.cooling))

    def load_state_dict(self, state: Any) -> None:
        """Resume from a saved state: the initial value is lowered as often as before, even if the config has another.

        RAISES (StateError): Not the state of a plateau schedule. Nothing changes then.
        """
        saved = read(PlateauState, state, "the state of the schedule 'thinc-torchopt.plateau.v1'")
        self.value, self.reductions = self._initial_value, 0
        while self.reductions < saved.reductions and self._reduce():
            pass
        self.best = self._worst if saved.best is None else saved.best
        self.bad = saved.bad_evaluations
        self.cooling = saved.cooldown_left


@dataclass
class PlateauState:
    """The saved form of a plateau schedule."""

    reductions: Count
    best: Optional[float]
    bad_evaluations: Count
    cooldown_left: Count
