"""A schedule that watches the score: it lowers a rate when the score gets no better."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, Literal, Optional

from ..schema import Count, NotNegative, read, write
from .arguments import Arguments

Mode = Literal["max", "min"]
ThresholdMode = Literal["rel", "abs"]


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
    """Stay at a rate as long as the score gets better, and lower it when it does not.

    It is told the score by our training loop. Elsewhere, so with thinc's own optimizers, `observe` is never called, and
    it stays at `initial_rate`.

    factor (float): A lower rate is the old one x factor. 0 to 1, without 1.
    patience (int): Evaluations in a row that may bring nothing better. The next such one lowers the rate.
    metric (str): The name of the score that it watches, e.g. "ents_f". Default: the main one, which is weighted by
        [training.score_weights].
    mode ("max" | "min"): Whether a higher or a lower score is better.
    threshold (float): By how much a score must be better than the best one to count.
    threshold_mode ("rel" | "abs"): Whether the threshold is a part of the best score, or a difference.
    cooldown (int): Evaluations after the rate was lowered in which nothing is counted as bad.
    min_rate (float): The rate is not lowered below this.
    eps (float): Where the rate would fall by no more than this, it stays.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: torch.optim.lr_scheduler.ReduceLROnPlateau, whose mode is "min" by default. There as here a score of NaN
        counts as no better. An infinite one does here too: there one that is infinitely good is the best for good, and
        the rate only falls.
    """
    check = Arguments("thinc-torchopt.plateau.v1")
    check.number("initial_rate", initial_rate)
    check.number("factor", factor, below=1.0)
    check.whole("patience", patience)
    if not isinstance(metric, str) or not metric:
        check.refuse("metric", "the name of a score", metric)
    check.choice("mode", mode, ["max", "min"])
    check.number("threshold", threshold)
    check.choice("threshold_mode", threshold_mode, ["rel", "abs"])
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
    """Whether a score is better than the best one so far. mode, threshold, threshold_mode: As in `plateau`."""
    return partial(_is_better, sign=1 if mode == "max" else -1, threshold=threshold, is_part=threshold_mode == "rel")


def _is_better(score: float, best: float, *, sign: int, threshold: float, is_part: bool) -> bool:
    least = best * (1.0 + sign * threshold) if is_part else best + sign * threshold
    return sign * score > sign * least


def worst_score(mode: Mode) -> float:
    """What any score is better than."""
    return -math.inf if mode == "max" else math.inf


class PlateauSchedule(Iterator[float]):
    """What `plateau` returns: a value that moves with the scores, not with the step.

    value (float): The current value.
    worst (float): What any score is better than.
    patience (int): How many bad evaluations in a row it lets pass.
    cooldown (int): For how many evaluations after it was lowered none is bad.
    is_better (Callable): Whether a score is better than the best one so far.
    lower (Callable): The next value.
    metric (str): The name of the score that it watches.

    Public: `metric`, `value`, `best` (the best score so far), `bad` (evaluations in a row that brought nothing better),
    `cooling` (how many of the cooldown are left).
    """

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
        self.value = value
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
        """Take the score of an evaluation, and lower the value if there were too many that brought nothing better."""
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
            self.value = self._lower(self.value)
            self.cooling = self._cooldown
            self.bad = 0

    def state_dict(self) -> Dict[str, Any]:
        """The state after the scores so far. `best` is None before the first score: JSON has no infinity."""
        best = self.best if math.isfinite(self.best) else None
        return write(PlateauState(self.value, best, self.bad, self.cooling))

    def load_state_dict(self, state: Any) -> None:
        """Go on as the one whose state this is. The rate is the saved one, also if `initial_rate` is another today.

        RAISES (StateError): Not the state of a plateau schedule. Nothing was changed.
        """
        saved = read(PlateauState, state, "the state of the schedule 'thinc-torchopt.plateau.v1'")
        self.value = saved.rate
        self.best = self._worst if saved.best is None else saved.best
        self.bad = saved.bad_evaluations
        self.cooling = saved.cooldown_left


@dataclass
class PlateauState:
    """What a plateau schedule is saved as."""

    rate: NotNegative
    best: Optional[float]
    bad_evaluations: Count
    cooldown_left: Count
