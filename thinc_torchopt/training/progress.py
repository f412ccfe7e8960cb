"""How far a training run got."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy

from ..checks import check_count, check_parts, own_errors
from ..errors import StateError


@dataclass
class Progress:
    """How far a run got.

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

    step: int = -1
    epoch: int = 0
    words: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    results: list[tuple[float, int]] = field(default_factory=list)
    rollbacks: list[tuple[int, int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    in_epoch: int | None = None
    left_out: int = 0
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

    def state_dict(self) -> dict[str, Any]:
        losses = {name: _save_loss(loss) for name, loss in self.losses.items()}
        results = [(number, step) for score, step in self.results if (number := _as_float(score)) is not None]
        return {
            **vars(self),
            "losses": {name: saved for name, saved in losses.items() if saved is not None},
            "results": results,
            "rollbacks": list(self.rollbacks),
            "counts": dict(self.counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """RAISES (StateError): Not such a state. Nothing is changed then."""
        losses = check_progress(state)
        self.__dict__.update(state, losses=losses)


def check_progress(state: Any) -> dict[str, Any]:
    """Check the state of a progress. RETURNS (dict): Its losses, of the kinds that they were.

    RAISES (StateError): It is none.
    """
    check_parts("the progress", state, _IS_PROGRESS)
    wrong = [name for name, value in state.items() if not _IS_PROGRESS[name](value)]
    if wrong:
        found = repr(state[wrong[0]])
        raise StateError(
            f"Can't load the state of the progress: expected another kind of '{wrong[0]}', found {found[:200]}."
        )
    with own_errors("the progress"):
        return {
            name: loss if dtype is None else numpy.dtype(dtype).type(loss)
            for name, (loss, dtype) in state["losses"].items()
        }


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


def _save_loss(loss: Any) -> list[Any] | None:
    # Sums of float32 are other sums than those of float64.
    number = _as_float(loss)
    return None if number is None else [number, loss.dtype.name if isinstance(loss, numpy.generic) else None]


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


def _is_number(value: Any) -> bool:
    """Whether it is one that a float can be: JSON has larger ones."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and _as_float(value) is not None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_pair(value: Any, is_first: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and is_first(value[0]) and _is_count(value[1])


# In what NumPy may have added up losses; None: a plain number.
_LOSSES: tuple[str | None, ...] = (None, "float16", "float32", "float64", "int32", "int64")


_IS_PROGRESS: dict[str, Callable[[Any], bool]] = {
    "step": _is_count,
    "epoch": _is_count,
    "words": _is_count,
    "losses": lambda value: (
        isinstance(value, dict)
        and all(
            isinstance(loss, list) and len(loss) == 2 and _is_number(loss[0]) and loss[1] in _LOSSES
            for loss in value.values()
        )
    ),
    "results": lambda value: isinstance(value, list) and all(_is_pair(result, _is_number) for result in value),
    "rollbacks": lambda value: isinstance(value, list) and all(_is_pair(rollback, _is_count) for rollback in value),
    "counts": lambda value: isinstance(value, dict) and all(map(_is_count, value.values())),
    "seconds": _is_number,
    "in_epoch": lambda value: value is None or _is_count(value),
    "left_out": _is_count,
    "was_stopped": lambda value: isinstance(value, bool),
}


def check_place(saved: Mapping[str, Any], *, is_spacys: bool) -> None:
    """Check that a run was at a step at which it can have been. To go anywhere else would take for ever.

    is_spacys (bool): Whether it is a run of `spacy train`.
    RAISES (StateError): It was not.
    """
    for part in ("progress", "data", "optimizer", "listeners"):
        check_parts(f"the {part}", saved[part])
    batches, done, of_optimizer = (
        saved["data"].get("position"),
        saved["progress"].get("step"),
        saved["optimizer"].get("step"),
    )
    steps = check_count("progress.step + 1", done + 1 if type(done) is int else done)
    check_count("optimizer.step", of_optimizer)
    left_out = check_count("progress.left_out", saved["progress"].get("left_out", 0))
    # A loop of the user's own may move its schedules when it likes.
    if check_count("data.position", batches) != steps + left_out or (is_spacys and of_optimizer != steps):
        raise StateError(
            f"Can't resume: expected as many batches as steps, found {batches} and {steps + left_out}, and "
            f"{of_optimizer} steps of the optimizer. The checkpoint is damaged."
        )
