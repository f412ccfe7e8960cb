"""Going back to a checkpoint: when updates go wrong one after the other, params and optimizer become what they were there.

The run itself goes on: step, data, schedules, scores and log do not go back. Checkpoints that were written since are removed; so a run that
is killed after it went back goes on from one before that, and all happens once more, to the last bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spacy.language import Language

from ..errors import RollbackError, RollbackWarning, StateError
from ..optimizers import TorchOptimizer
from ..params import model_by_names_of_now
from .checkpoint_folder import name_of, remove, steps_of, whole_ones
from .model_state import check_model, is_finite, restore_model
from .progress import Progress


class Rollback:
    """Takes a run back. Only for optimizers with `rollback` and `checkpoint` settings.

    nlp (Language), optimizer (TorchOptimizer): The run's.
    """

    def __init__(self, nlp: Language, optimizer: TorchOptimizer):
        assert optimizer.rollback is not None and optimizer.checkpoint is not None
        self.settings = optimizer.rollback
        self._folder = Path(optimizer.checkpoint.path).absolute()
        self._nlp = nlp
        self._optimizer = optimizer

    @property
    def is_due(self) -> bool:
        """Whether so many updates in a row went wrong."""
        return self._optimizer.bad_updates_in_a_row >= self.settings.after

    def go_back(self, progress: Progress) -> None:
        """Bring model and optimizer to where they were at the newest good checkpoint; if that is the same as last time, at an older one.

        RAISES (RollbackError): No checkpoint, one from before the model grew, or the training went back `max_rollbacks` times already.
        """
        what = f"the last {self.settings.after} updates had gradients that are not finite, or spikes"
        if len(progress.rollbacks) >= self.settings.at_most:
            raise RollbackError(
                f"Can't continue after step {progress.step}: {what}, and the training went back max_rollbacks = "
                f"{self.settings.at_most} times already. Lower learn_rate, or check the training data."
            )
        saved = self._find(progress)
        if saved is None:
            raise RollbackError(
                f"Can't go back to a checkpoint: {what}; expected an undamaged one with finite params from before that in "
                f"'{self._folder}', found none. Lower learn_rate, check the training data, or remove rollback_after."
            )
        step = saved["progress"]["step"]
        try:
            check_model(self._nlp, saved["model"])
            self._optimizer.roll_back(saved["optimizer"])
        except StateError as error:
            raise RollbackError(
                f"Can't go back to the checkpoint of step {step}: {what}, and the model has grown since. Lower learn_rate, or check the "
                f"training data. ({error})"
            ) from error
        restore_model(self._nlp, saved["model"])
        paths = steps_of(self._folder)
        remove(paths[paths.index(self._folder / name_of(step)) + 1 :])
        progress.rollbacks.append((progress.step, step))
        warnings.warn(
            RollbackWarning(
                f"Went back to the params of step {step} after step {progress.step}: {what}. Learning rates are now "
                f"{self.settings.factor:g} times what they were. This was rollback {len(progress.rollbacks)} of max_rollbacks = "
                f"{self.settings.at_most}."
            ),
            stacklevel=3,
        )

    def _find(self, progress: Progress) -> Mapping[str, Any] | None:
        """The checkpoint to go back to."""
        last, came_to = progress.rollbacks[-1] if progress.rollbacks else (-1, -1)
        tried = None
        for saved in whole_ones(self._folder):
            saved["model"] = model_by_names_of_now(saved["model"], self._nlp)
            step = saved["progress"]["step"]
            if saved["optimizer"]["guard"]["bad_in_a_row"] or not is_finite(self._nlp, saved["model"]):
                continue
            if step > last or step < came_to:
                return saved
            tried = saved  # it did not help; but if it is the oldest, rates at least are lower now
        return tried
