"""Checkpoints: the whole state of a training run on disk, from which `spacy train` goes on as if it had never stopped.

    training/state/
      step-00001000/        tensors.safetensors, values.json, manifest.json (their checksums)
      step-00001500/
      best/                 the best model so far: spaCy removes its own when it is started again

      lock.json             whose the folder is, while the training runs

A checkpoint is written after a step is done, and logged and saved by spaCy; see files.py for how. The newest whole one counts.
"""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from spacy.language import Language
from spacy.training.loop import DIR_MODEL_BEST, DIR_MODEL_LAST

from .best_model import BestModel
from .checkpoint_folder import clear_leftovers, name_of, newest_whole, prune, remove, steps_of
from .checks import Section, check_count, check_parts, own_errors
from .errors import CheckpointWarning, ConfigError, ScheduleError, StateError
from .files import write_folder
from .model_state import (
    check_can_be_saved,
    check_model,
    collect_grads,
    collect_model,
    layout_of,
    restore_grads,
    restore_model,
    restore_setup,
)
from .old_names import model_by_names_of_now
from .optimizers import TorchOptimizer
from .run_config import collect_config, collect_identity, collect_values, compare_configs, compare_identities
from .run_lock import RunLock
from .signals import Signals
from .training_state import DataStream, Progress, check_generators, check_random, collect_random, plain_scores, restore_random
from .types import CheckpointSettings

# spaCy shows warnings, and hides what is only information; that a run goes on should be seen.
logger = logging.getLogger("spacy.torchopt")
logger.setLevel(logging.INFO)

_BLOCK = "[training.optimizer.checkpoint]"


def Checkpoint(
    path: str,
    *,
    every: int = 0,
    keep: int = 2,
    resume: Literal["auto", "must", "never"] = "auto",
    on_config_change: Literal["refuse", "warn"] = "refuse",
    allow_foreign_shims: bool = False,
    progress_bar: bool = True,
) -> CheckpointSettings:
    """Save the state of a training run, and go on from it. Registered as `thinc-torchopt.Checkpoint.v1`.

    path (str): A folder for this run alone.
    every (int): Save after every so many steps; always after an evaluation. 0: only then.
    keep (int): How many checkpoints to keep, the newest.
    resume ("auto" | "must" | "never"): Resume from the newest undamaged checkpoint if there is one; stop if there is none; or start again.
    on_config_change ("refuse" | "warn"): When the config is another than that of the checkpoint. Paths, `max_steps`, `patience`,
        `eval_frequency`, the logger and this block may change.
    allow_foreign_shims (bool): Load what is loaded by code that is not ours: shims that are not of torch modules, and components whose
        model is none of thinc's. Their `from_bytes` gets what is in the folder.
    progress_bar (bool): Show how far a run that goes on has read past the batches of before; only in a terminal or a notebook.
    RAISES (ConfigError): An argument is out of its range.
    """
    section = Section(_BLOCK)
    folder = str(path) if isinstance(path, Path) else path
    if not isinstance(folder, str) or not folder or Path(folder).is_file():
        section.refuse("path", "a folder", path)
    return CheckpointSettings(
        folder,
        section.whole("every", every),
        section.whole("keep", keep, at_least=1),
        section.choice("resume", resume, ("auto", "must", "never")),
        section.choice("on_config_change", on_config_change, ("refuse", "warn")),
        section.flag("allow_foreign_shims", allow_foreign_shims),
        section.flag("progress_bar", progress_bar),
    )


class RunCheckpoints:
    """The checkpoints of a run: of `spacy train`, or of a loop of the user's own (see own_loop.py).

    settings (CheckpointSettings): From the config.
    nlp (Language), optimizer (TorchOptimizer): The run's.
    batches (Iterator): Epoch and batch of each step.
    own (dict[str, Any] | None): Values of the user's own, saved with each checkpoint. None: the run is that of `spacy train`.

    Public: `stream` (the batches, which a run that goes on can draw again), `signals` (which stop the run after its step), `own`.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        nlp: Language,
        optimizer: TorchOptimizer,
        batches: Iterator[Any],
        *,
        own: dict[str, Any] | None = None,
    ):
        self.settings = settings
        self.own = own
        self.folder = Path(settings.path).absolute()
        self.stream = DataStream(batches)
        self.signals = Signals()
        self._nlp = nlp
        self._optimizer = optimizer
        self._lock = RunLock(self.folder)
        self._best = BestModel(self.folder)
        self._best_step: int | None = None
        self._damaged: set[Path] = set()
        self._goes_on = False
        self._written: int | None = None
        self._output: Path | None = None
        self._random: Mapping[str, Any] = {}
        # The pipeline as a run that goes on builds it: no callback has changed it yet.
        self._layout = layout_of(nlp)
        self._settings = {"config": collect_config(nlp), "values": collect_values(nlp), "identity": collect_identity(nlp)}

    @property
    def newest(self) -> int | None:
        """The step of the newest checkpoint that this run has written, or went on from."""
        return self._written

    # ------------------------------------------------------------------ going on

    def open(self, progress: Progress, dropouts: Iterator[float]) -> bool:
        """Claim the folder; and go on from the newest whole checkpoint, if the run is to: bring all to where it was.

        The optimizer knows its pipeline. `restore_random` comes when all begins. Nothing on the disk is changed yet.
        RETURNS (bool): Whether the run goes on.
        RAISES (ConfigError): The folder can't be used. (StateError): It is another run's; there must be a checkpoint and is none; it is of
            another config, pipeline or data.
        """
        self._lock.take()
        try:
            clear_leftovers(self.folder)
            saved = self._find()
            if saved is not None and "output" in saved:
                self._best.accept_old()
            self._best.check_place()
            if saved is not None:
                self._restore(saved, progress, dropouts)
        except BaseException:
            self._lock.release()
            raise
        self._goes_on = saved is not None
        return self._goes_on

    def _find(self) -> dict[str, Any] | None:
        """The newest whole checkpoint, if the run is to go on from one."""
        if self.settings.resume == "never":
            return None
        saved = newest_whole(self.folder, self._damaged)
        if saved is None:
            if self.settings.resume == "must":
                raise StateError(
                    f"Can't resume from 'path' in {_BLOCK}, '{self.folder}': expected an undamaged checkpoint, found none. Check the path, "
                    'or set resume = "auto".'
                )
            if self._damaged:
                warnings.warn(
                    CheckpointWarning(f"All checkpoints in '{self.folder}' are damaged: the training starts from the beginning."),
                    stacklevel=4,
                )
            return None
        with own_errors(f"the training in '{self.folder}'"):
            changes = self._changes(saved)
            saved["model"] = model_by_names_of_now(saved["model"], self._nlp)
        if changes:
            text = f"the config has changed since the checkpoint in '{self.folder}' was written:\n  " + "\n  ".join(changes)
            if self.settings.on_config_change == "refuse":
                raise StateError(
                    f"Can't resume: {text}\nTo resume anyway: {self._setting('on_config_change', 'warn')}. To start from the beginning: "
                    f"{self._setting('resume', 'never')}, or another path."
                )
            warnings.warn(CheckpointWarning(f"Resuming although {text}"), stacklevel=4)
        check_model(self._nlp, saved["model"], allow_foreign_shims=self.settings.allow_foreign_shims)
        return saved

    def _setting(self, name: str, value: str) -> str:
        """How to set one, for messages."""
        return f"--training.optimizer.checkpoint.{name} {value}" if self.own is None else f'{name}="{value}"'

    def _changes(self, saved: Mapping[str, Any]) -> list[str]:
        """What is another than in the run that goes on, a line each. Older versions saved less."""
        part = "values" if "values" in saved else "config"
        found = compare_configs(saved[part], self._settings[part])
        return found + (compare_identities(saved["identity"], self._settings["identity"]) if "identity" in saved else [])

    def _restore(self, saved: Mapping[str, Any], progress: Progress, dropouts: Iterator[float]) -> None:
        self._check_place(saved)
        check_random(saved["random"])
        check_generators(saved["data"].get("start"))
        restore_model(self._nlp, saved["model"])
        restore_setup(self._nlp, saved["model"])
        try:
            self._optimizer.load_state_dict(saved["optimizer"])
        except (ConfigError, ScheduleError) as error:
            raise StateError(f"{error} The checkpoint is in '{self.folder}'.") from error
        restore_grads(self._nlp, saved.get("grads"), {key for key, updates in self._optimizer.nr_update.items() if updates})
        with own_errors(f"the training in '{self.folder}'"):
            self._restore_run(saved, progress)
            for _ in range(self.stream.position):
                next(dropouts)

    def _restore_run(self, saved: Mapping[str, Any], progress: Progress) -> None:
        if self.own is not None:
            check_parts("your own values", saved.get("own", {}))
            self.own = dict(saved.get("own", {}))
        batches = saved["data"]["position"]
        logger.info("Reading past %s batches, to where the run stopped.", f"{batches:,}")
        try:
            self.stream.load_state_dict(saved["data"], progress_bar=self.settings.progress_bar)
        except StateError as error:
            raise StateError(f"{error} Bring the old data back, or start anew: {self._setting('resume', 'never')}.") from error
        progress.load_state_dict(saved["progress"])
        self._written, self._best_step = progress.step, progress.best_step
        self._nlp.meta["performance"] = dict(saved["performance"])
        self._random = saved["random"]

    def _check_place(self, saved: Mapping[str, Any]) -> None:
        """RAISES (StateError): The run was at no step at which it can have been. To go there would take for ever."""
        for part in ("progress", "data", "optimizer"):
            check_parts(f"the {part}", saved[part])
        batches, done, of_optimizer = saved["data"].get("position"), saved["progress"].get("step"), saved["optimizer"].get("step")
        steps = check_count("progress.step + 1", done + 1 if type(done) is int else done)
        # A loop of the user's own may move its schedules when it likes.
        moves_each_step = self.own is None
        check_count("optimizer.step", of_optimizer)
        if check_count("data.position", batches) != steps or (moves_each_step and of_optimizer != steps):
            raise StateError(
                f"Can't resume: expected as many batches as steps, found {batches} and {steps}, and {of_optimizer} steps of the optimizer. "
                "The checkpoint is damaged."
            )

    def begin(self) -> None:
        """The training begins. One that starts anew removes what an earlier one left."""
        if self.settings.resume == "never":
            remove(steps_of(self.folder))
        if not self._goes_on:
            self._best.remove()
        try:
            self._best.mark_old()
        except OSError as error:
            self._warn(error)

    def close(self) -> None:
        """The training has ended: let the folder go."""
        self._lock.release()

    def restore_random(self) -> None:
        """Set the random generators to where they were."""
        restore_random(self._random)

    def report(self, progress: Progress, is_over: bool) -> None:
        """Tell where a run goes on that was restored. is_over (bool): It does not."""
        if is_over:
            logger.info(
                "Nothing to do: the training in %s was finished, after step %d. To train longer, raise max_steps, max_epochs or "
                "patience in [training]. To start from the beginning, add --training.optimizer.checkpoint.resume never, or set another "
                "path.",
                self.folder,
                progress.step,
            )
        else:
            logger.info("Resuming after step %d, from the checkpoint in %s.", progress.step, self.folder)

    # ------------------------------------------------------------------ the folder to which spaCy saves

    def before_cleaning(self, output: Path | None) -> None:
        """spaCy is about to remove old models from a folder.

        RAISES (ConfigError): The checkpoints would go with them.
        """
        for model in _models_in(output):
            if self.folder.resolve().is_relative_to(model.resolve()):
                raise ConfigError(
                    f"Can't set 'path' in {_BLOCK} to '{self.folder}': spaCy removes '{model}' and everything in it when a training "
                    "starts. Choose another folder."
                )

    def after_cleaning(self, output: Path | None) -> None:
        """spaCy has removed them: the best model of a run that goes on comes back."""
        self._output = None if output is None else output.absolute()
        if self._goes_on:
            self._put_best_back()

    def _put_best_back(self) -> None:
        if self._output is None or not self._best.is_there or not self._output.is_dir():
            return
        model_best, _ = _models_in(self._output)
        if model_best.exists():
            return
        try:
            step = self._best.put_back(model_best)
        except (OSError, StateError) as error:
            warnings.warn(
                CheckpointWarning(
                    f"Can't restore the best model so far to '{model_best}': {error} Training goes on, and saves the next better model "
                    "there."
                ),
                stacklevel=4,
            )
        else:
            if step is not None and self._best_step is not None and step < self._best_step:
                warnings.warn(
                    CheckpointWarning(
                        f"The model in '{model_best}' is that of step {step}. The model of step {self._best_step} was better, but could "
                        "not be kept."
                    ),
                    stacklevel=4,
                )

    # ------------------------------------------------------------------ saving

    def after_step(self, progress: Progress, info: Mapping[str, Any], is_best: bool | None, is_over: bool) -> None:
        """Save what is due after a step, and stop if a signal asked for it.

        info (Mapping): What spaCy was given, and added to. is_best (bool | None): None: the step was not evaluated.
        """
        if self._output is None and "output_path" in info:
            self._output = Path(info["output_path"]).absolute().parent
        if is_best:
            self._keep_best(progress.step)
        every, stopped_by = self.settings.every, self.signals.noted
        if is_over:
            self.end(progress)
        elif stopped_by is not None:
            self._save(progress, is_last=True)
            logger.warning(
                "Stopped by %s after step %d; the state is saved in %s. To go on, run the same command again.",
                signal.Signals(stopped_by).name,
                progress.step,
                self.folder,
            )
            raise SystemExit(128 + stopped_by)
        elif is_best is not None or (every and progress.step % every == 0):
            self._save(progress)

    def end(self, progress: Progress) -> None:
        """Save what is due at the end: after the last step, or when there is no more data."""
        if self._goes_on:
            self._put_best_back()
        if self._written != progress.step:
            self._save(progress, is_last=True)

    def _keep_best(self, step: int) -> None:
        model_best = _models_in(self._output)[0] if self._output is not None else None
        if model_best is not None and model_best.is_dir():
            try:
                self._best.keep(model_best, step)
            except OSError as error:
                self._warn(error)

    def _save(self, progress: Progress, *, is_last: bool = False) -> None:
        if not self._goes_wrong(progress):
            self._write(progress, keep=self.settings.keep)
        elif is_last:
            # That is no point to go back to, and must not push one out. A run that goes on from before comes here again.
            self._write(progress, keep=None)

    def _goes_wrong(self, progress: Progress) -> bool:
        """Whether the training may go back soon, or just did."""
        just_did = bool(progress.rollbacks) and progress.rollbacks[-1][0] == progress.step
        return just_did or (self._optimizer.rollback is not None and self._optimizer.bad_updates_in_a_row > 0)

    def save(self, progress: Progress) -> None:
        """Save now, if that has not been done."""
        if self._written != progress.step:
            self._write(progress, keep=self.settings.keep)

    def _write(self, progress: Progress, *, keep: int | None) -> None:
        path = self.folder / name_of(progress.step)
        check_can_be_saved(self._nlp, self._layout, allow_foreign_shims=self.settings.allow_foreign_shims)
        tree = {
            **self._settings,
            "progress": progress.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "model": collect_model(self._nlp, self._optimizer.stopped_grads),
            "data": self.stream.state_dict(),
            "random": collect_random(),
            "performance": plain_scores(self._nlp.meta.get("performance", {})),
            **({} if self.own is None else {"own": self.own, "grads": collect_grads(self._nlp)}),
        }
        try:
            self._lock.check()
            write_folder(path, tree)
            self._written = progress.step
            self._damaged.discard(path)
            if keep is not None:
                prune(self.folder, keep, self._damaged)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        warnings.warn(
            CheckpointWarning(
                f"Can't write a checkpoint to '{self.folder}': {error}. Training goes on, and older checkpoints are unchanged. Make room "
                "on the disk, or lower 'keep'."
            ),
            stacklevel=5,
        )


def _models_in(output: Path | None) -> list[Path]:
    """Where spaCy saves the best model and the last one."""
    return [] if output is None else [output / DIR_MODEL_BEST, output / DIR_MODEL_LAST]
