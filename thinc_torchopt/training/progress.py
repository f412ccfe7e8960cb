"""How far a training run got."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy

from ..checks import MAX_STEPS
from ..schema import AnyNumber, Count, Limit

# -1: before the first.
Step = Annotated[int, Limit(f"a whole number from -1 to {MAX_STEPS:,}", lambda step: -1 <= step <= MAX_STEPS)]
# NumPy's are kept: sums of float32 are other sums than those of float64.
Loss = (
    AnyNumber
    | Annotated[numpy.number, Limit("one of NumPy's", lambda loss: isinstance(loss, (numpy.floating, numpy.integer)))]
)


@dataclass
class Progress:
    """How far a run got; and how that is saved.

    step (int): The last step that was done; -1 before the first.
    losses (dict): Of each component, added up since the last evaluation.
    results (list): Score and step of each evaluation.
    rollbacks (list): Each time that the training went back: at which step, and to the params of which step.
    counts (dict): What there was of skipped updates and the like at the last evaluation.
    seconds (float): Spent so far, in all parts of the run.
    in_epoch (int | None): The epoch that has begun and not ended.
    left_out (int): Batches that were drawn and not trained on.
    was_stopped (bool): The run is over because a listener asked for it.
    """

    step: Step = -1
    epoch: int = 0
    words: int = 0
    losses: dict[str, Loss] = field(default_factory=dict)
    results: list[tuple[AnyNumber, Step]] = field(default_factory=list)
    rollbacks: list[tuple[Step, Step]] = field(default_factory=list)
    counts: dict[str, Count] = field(default_factory=dict)
    seconds: float = 0.0
    in_epoch: int | None = None
    left_out: Count = 0
    was_stopped: bool = False

    def is_over(self, patience: int, max_steps: int) -> bool:
        """Whether training is to stop after this step: `patience` steps without a better score, or `max_steps` done. 0:
        no such limit.
        """
        best_step = self.best_step
        has_no_patience = patience and best_step is not None and self.step - best_step >= patience
        return self.was_stopped or bool(has_no_patience or (max_steps and self.step >= max_steps))

    @property
    def best_step(self) -> int | None:
        """The first step with the best score. NaN is the worst of all."""
        return max(self.results, key=_rank)[1] if self.results else None

    @property
    def best_score(self) -> Any:
        """As it was evaluated; None before that."""
        return max(self.results, key=_rank)[0] if self.results else None

    def ranked(self, until: int | None = None) -> list[int]:
        """The steps that were evaluated, the best first; of equal scores the first. NaN never counts as a score.

        until (int | None): Only those up to this step.
        """
        found = [(_as_float(score), step) for score, step in self.results if until is None or step <= until]
        known = [(-score, step) for score, step in found if score is not None and not math.isnan(score)]
        return [step for _, step in sorted(known)]

    def snapshot(self) -> Progress:
        """A copy as it can be saved: with what is a number, of whatever kind it was."""
        losses = {
            name: loss if isinstance(loss, numpy.number) else _as_float(loss) for name, loss in self.losses.items()
        }
        results = [(number, step) for score, step in self.results if (number := _as_float(score)) is not None]
        return replace(
            self,
            losses={name: loss for name, loss in losses.items() if loss is not None},
            results=results,
            rollbacks=list(self.rollbacks),
            counts=dict(self.counts),
        )

    def go_on_from(self, saved: Progress) -> None:
        """Be as a saved one."""
        self.__dict__.update(vars(saved))


def _rank(result: tuple[Any, int]) -> tuple[Any, int]:
    """The better, the larger. In spaCy's loop a NaN that comes first stays the best for good."""
    score, step = result
    return (score if score == score else -math.inf), -step


def _as_float(value: Any) -> float | None:
    """A score or loss as a float, also from an array or tensor of one element. None: not a number."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def plain_scores(value: Any) -> Any:
    """Scores as they can be saved, whatever a scorer gives: arrays as lists, and None for what is no number, text, list
    or dict.
    """
    if isinstance(value, Mapping):
        return {str(key): plain_scores(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_scores(item) for item in value]
    if hasattr(value, "tolist"):
        value = value.tolist()
        return plain_scores(value) if isinstance(value, list) else value
    return value if value is None or isinstance(value, (bool, int, float, str)) else None
