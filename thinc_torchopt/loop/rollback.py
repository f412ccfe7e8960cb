"""Rollback: after several bad updates in a row, restore params and optimizer from a checkpoint.

The run continues: step, data, schedules, scores and log do not go back. Newer checkpoints are removed, so a run that is
killed after a rollback resumes from an earlier one, and repeats everything bit-identically.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from spacy.language import Language

from ..core.errors import RollbackError, RollbackWarning, StateError
from ..core.optimizer import TorchOptimizer
from ..core.params import walk_pipeline
from ..core.types import RollbackSettings
from .checkpoint_folder import SavedTraining, name_of, remove, resumable, step_of, steps_of, whole_ones
from .events import Control, Save, StepEnd, TrainEnd
from .late_labels import with_late_rows
from .model_state import check_model, is_finite, layout_of, restore_model
from .progress import Progress


class Rollback:
    """Rolls a run back, by the settings of its optimizer or on another listener's request. A listener."""

    name = "rollback"

    def __init__(self, optimizer: TorchOptimizer):
        # Without rollback_after the optimizer never goes back by itself, but a listener may ask for it.
        self.settings = optimizer.rollback or RollbackSettings(after=0, factor=1.0, at_most=optimizer.max_rollbacks)

    def on_step_end(self, event: StepEnd, control: Control) -> None:
        if 0 < self.settings.after <= event.run.optimizer.bad_updates_in_a_row:
            bad = f"the last {self.settings.after} updates had gradients that are not finite, or spikes"
            self._go_back(event.run, bad, factor=self.settings.factor)
        else:
            self._do_what_was_asked(event.run, control)
        control.should_roll_back = control.should_roll_back_to_best = False

    def on_save(self, event: Save, control: Control) -> None:
        self._do_what_was_asked(event.run, control)  # requests since the end of the step
        control.should_roll_back = control.should_roll_back_to_best = False

    def on_train_end(self, event: TrainEnd, control: Control) -> None:
        """Serve requests since the last step, and save the result: the run does not continue."""
        control.should_save |= control.should_roll_back
        self._do_what_was_asked(event.run, control)

    def _do_what_was_asked(self, run: Any, control: Control) -> None:
        if control.should_roll_back_to_best:
            # Save the result, or a run killed next would resume from before.
            control.should_save = True
            if run.progress.step not in run.progress.ranked()[:1]:  # unless this step is the best
                self._go_back(run, "a rule or listener asked for the best one", to_best=True)
        elif control.should_roll_back:
            self._go_back(run, "a rule or listener asked for it")

    def _go_back(self, run: Any, what: str, *, factor: float = 1.0, to_best: bool = False) -> None:
        """Restore model and optimizer from the newest good checkpoint; from an older one, if that was used last time.

        what (str): The reason, for messages. factor (float): For all learning rates. A rule cuts them by itself.
        to_best (bool): Use the good checkpoint with the best evaluation, even if it was used last time.
        RAISES (RollbackError): There is no checkpoint, the model has grown since, or the training went back
            `max_rollbacks` times already.
        """
        progress, nlp = run.progress, run.nlp
        if run.checkpoints is None:
            raise RollbackError(
                f"Can't go back to a checkpoint, although {what}: there is no block [training.optimizer.checkpoint]. "
                "Add it."
            )
        folder = run.checkpoints.folder
        run.models.keep_asked()
        run.checkpoints.wait()
        if len(progress.rollbacks) >= self.settings.at_most:
            raise RollbackError(
                f"Can't continue after step {progress.step}: {what}, and the training went back max_rollbacks = "
                f"{self.settings.at_most} times already. Lower learn_rate, or check the training data."
            )
        saved = run.ranks.from_rank_0(lambda: (_best if to_best else _newest)(folder, nlp, progress))
        if saved is None:
            kind, advice = (
                ("evaluated", 'or let the rule wait for an evaluation, by state["best_step"] of TrainingState')
                if to_best
                else ("undamaged", "or remove rollback_after")
            )
            raise RollbackError(
                f"Can't go back to a checkpoint, although {what}: expected an earlier one in '{folder}' that is {kind} "
                f"and has finite params, found none. Lower learn_rate, check the training data, {advice}."
            )
        step = saved.progress.step
        try:
            walked = walk_pipeline(nlp)
            model = with_late_rows(nlp, saved.model, walked)
            check_model(nlp, model, layout_of(nlp, walked))
            run.optimizer.roll_back(saved.optimizer, factor)
        except StateError as error:
            raise RollbackError(
                f"Can't go back to the checkpoint of step {step}, although {what}: the model has grown since. Lower "
                f"learn_rate, or check the training data. ({error})"
            ) from error
        restore_model(nlp, model, walked)
        if run.ranks.writes:
            remove(path for path in resumable(folder) if (step_of(path) or 0) > step)
        progress.rollbacks.append((progress.step, step))
        rates = "" if factor == 1.0 else f" Learning rates are now {factor:g} times what they were."
        warnings.warn(
            RollbackWarning(
                f"Went back to the params of step {step} after step {progress.step}: {what}.{rates} This was rollback "
                f"{len(progress.rollbacks)} of max_rollbacks = {self.settings.at_most}."
            ),
            stacklevel=4,
        )


def _best(folder: Path, nlp: Language, progress: Progress) -> SavedTraining | None:
    """The good checkpoint with the best evaluation."""
    paths = [path for step in progress.ranked() if (path := folder / name_of(step)).is_dir()]
    return next((saved for saved in whole_ones(paths) if is_finite(nlp, saved.model)), None)


def _newest(folder: Path, nlp: Language, progress: Progress) -> SavedTraining | None:
    """The newest good checkpoint that was not tried last time."""
    last, came_to = progress.rollbacks[-1] if progress.rollbacks else (-1, -1)
    tried = None
    for saved in whole_ones(reversed(steps_of(folder))):
        step = saved.progress.step
        if saved.optimizer["guard"]["bad_in_a_row"] or not is_finite(nlp, saved.model):
            continue
        if step > last or step < came_to:
            return saved
        tried = saved  # it did not help; but if it is the oldest, at least the rates are lower now
    return tried
