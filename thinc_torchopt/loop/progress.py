"""The progress of a training run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from timeit import default_timer
from typing import Annotated, Any
from uuid import uuid4

import numpy
import torch

from ..core.checks import MAX_STEPS
from ..core.schema import AnyNumber, Count, Limit

# -1: before the first.
Step = Annotated[int, Limit(f"a whole number from -1 to {MAX_STEPS:,}", lambda step: -1 <= step <= MAX_STEPS)]
# NumPy numbers keep their type: sums of float32 differ from those of float64.
Loss = (
    AnyNumber
    | Annotated[numpy.number, Limit("one of NumPy's", lambda loss: isinstance(loss, (numpy.floating, numpy.integer)))]
)


@dataclass
class Progress:
    """The progress of a run, as it is saved.

    step (int): The last finished step; -1 before the first.
    losses (dict): Sums by component since the last evaluation.
    results (list): Score and step of each evaluation.
    rollbacks (list): For each rollback, the step at which it happened and the step that it went back to.
    counts (dict): Counts of skipped updates and the like at the last evaluation.
    seconds (float): Seconds spent so far, with the time before the run was resumed.
    in_epoch (int | None): The epoch that has begun and not ended.
    left_out (int): Batches that were drawn and not trained on.
    was_stopped (bool): Whether a listener ended the run.
    run_id (str): Tells this run from others, also when it is resumed.
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
    run_id: str = field(default_factory=lambda: uuid4().hex)

    def is_over(self, patience: int, max_steps: int) -> bool:
        """Whether training should stop after this step: `patience` steps without a better score, or `max_steps` done.
        0: no limit.
        """
        best_step = self.best_step
        has_no_patience = patience and best_step is not None and self.step - best_step >= patience
        return self.was_stopped or bool(has_no_patience or (max_steps and self.step >= max_steps))

    @property
    def best_step(self) -> int | None:
        """The first step with the best score. NaN is worse than any number."""
        return max(self.results, key=_rank)[1] if self.results else None

    @property
    def best_score(self) -> Any:
        """The best score. None: not evaluated yet."""
        return max(self.results, key=_rank)[0] if self.results else None

    def ranked(self, until: int | None = None) -> list[int]:
        """The evaluated steps, the best first; equal scores in order of steps. NaN is left out.

        until (int | None): Only steps up to this one.
        """
        found = [(as_float(score), step) for score, step in self.results if until is None or step <= until]
        known = [(-score, step) for score, step in found if score is not None and not math.isnan(score)]
        return [step for _, step in sorted(known)]

    def snapshot(self) -> Progress:
        """A copy that can be saved, with numbers only."""
        losses = {
            name: loss if isinstance(loss, numpy.number) else as_float(loss) for name, loss in self.losses.items()
        }
        results = [(number, step) for score, step in self.results if (number := as_float(score)) is not None]
        return replace(
            self,
            losses={name: loss for name, loss in losses.items() if loss is not None},
            results=results,
            rollbacks=list(self.rollbacks),
            counts=dict(self.counts),
        )

    def go_on_from(self, saved: Progress) -> None:
        """Restore a saved one."""
        self.__dict__.update(vars(saved))


def _rank(result: tuple[Any, int]) -> tuple[Any, int]:
    """A sort key; better is larger. In spaCy's own loop, a NaN that comes first would stay the best."""
    score, step = result
    return (score if score == score else -math.inf), -step


def as_float(value: Any) -> float | None:
    """A score or loss as a float, also from an array or tensor of one element. None: not a number."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def plain_scores(value: Any) -> Any:
    """Make scores savable: arrays become lists; anything but finite numbers, texts, lists and dicts becomes None."""
    if isinstance(value, Mapping):
        return {str(key): plain_scores(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_scores(item) for item in value]
    if hasattr(value, "tolist"):
        return plain_scores(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (bool, int, str)) else None


class TimeSpent:
    """Where the time of a run goes, in this process.

    seconds (dict): By phase, so far: reading and batching data; updates; evaluations; logging, and saving models and
        checkpoints. "gpu_idle": of all of it, where the GPU had nothing to do, by NVML's samples of about once a
        second; not without a GPU or nvidia-ml-py.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("data", "updates", "evaluations", "saving"), 0.0)
        self._since = self._sampled = default_timer()

    def begin(self, *, on_gpu: bool) -> None:
        """Count from now on. on_gpu (bool): Params are on the current GPU."""
        self._since = self._sampled = default_timer()
        if on_gpu and _percent_in_use() is not None:
            self.seconds["gpu_idle"] = 0.0

    def on(self, phase: str) -> None:
        """Count the time since the last call for a phase."""
        since, self._since = self._since, default_timer()
        self.seconds[phase] += self._since - since
        if "gpu_idle" in self.seconds and (passed := self._since - self._sampled) >= 1.0:
            self._sampled = self._since
            if (percent := _percent_in_use()) is None:
                del self.seconds["gpu_idle"]  # too little
            else:
                self.seconds["gpu_idle"] += passed * (1.0 - percent / 100)


def _percent_in_use() -> int | None:
    """The use of the GPU in the last second, by NVML. None: there is no nvidia-ml-py, or NVML can't tell it, as of a
    part of a GPU (MIG). A number for the log stops no training, whatever the driver raises.
    """
    try:
        return torch.cuda.utilization()
    except Exception:
        return None
