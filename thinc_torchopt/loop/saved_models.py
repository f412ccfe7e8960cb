"""The models of a run, in the folder where spaCy saves them: each is written whole or not at all.

spaCy writes over model-last, and removes model-best before it copies the better one. Here each is written beside the
old one first. If that fails, as on a full disk, the training goes on, and the next save tries again; unless no model
could be saved yet, by an error that does not pass, as of a disk that is read-only.

spaCy also removes both when a training starts. In a run with checkpoints, the best model says of which run it is: then
it stays when that run is resumed.

On request of rules or other listeners, more are saved: `model-step-120` in a run without checkpoints, and the best one
by another score.
"""

from __future__ import annotations

import errno
import inspect
import json
import math
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from spacy.language import Language
from spacy.training.loop import DIR_MODEL_BEST, DIR_MODEL_LAST, create_before_to_disk_callback
from spacy.util import load_config, registry
from thinc.api import Model

from ..core.errors import CheckpointWarning, ConfigError, ConfigWarning, StateError
from ..core.host import module_of
from ..core.optimizer import TorchOptimizer
from ..core.params import components_with_model
from ..core.schema import AnyNumber, Count, read, write
from ..core.state import advice_on, clear_leftovers, is_one_of, replacing
from .checkpoint import RunCheckpoints
from .checkpoint_folder import most_at_once, nearest
from .config_check import compare_configs, task_of
from .events import Control, Event
from .progress import Progress, as_float, plain_scores

# In the folder of a model that is the best of a run: what it is.
_MARK = "kept-as-best.json"
# At each save but the first: the two of the save before stay until the new one is whole.
_MODELS: Final = 3
# Errors that don't pass, unlike those of a full disk, of one on a network, of a busy system.
_LASTING: Final = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL),
)


@dataclass
class KeptModel:
    """The best model by a score. run_id (str): Of the run that saved it."""

    run_id: str
    step: Count
    score: AnyNumber

    @classmethod
    def in_folder(cls, folder: Path) -> KeptModel | None:
        """The model that is kept in a folder. None: there is none."""
        try:
            return None if folder.is_symlink() else read(cls, json.loads((folder / _MARK).read_text()), str(folder))
        except (OSError, ValueError):
            return None

    def mark(self, folder: str | Path) -> None:
        (Path(folder) / _MARK).write_text(json.dumps(write(self)))


class SavedModels:
    """Writes the models of a run: with averages, if there are some, and after `before_to_disk`. A listener.

    nlp (Language), optimizer (TorchOptimizer), progress (Progress): The run's.

    Public: `checkpoints` (of the run, where requests to save are for those; they need room too), `folder` (where spaCy
    saves models; None: unknown, or there is none), `is_over` (whether the run has ended: then a model that can't be
    saved is an error), `is_next_best` (whether the model that spaCy saves next is the best).
    """

    name = "saved models"
    events = ("on_save", "on_epoch_end", "on_epoch_begin", "on_train_end")

    def __init__(self, nlp: Language, optimizer: TorchOptimizer, progress: Progress):
        self._nlp = nlp
        self._optimizer = optimizer
        self._progress = progress
        self.checkpoints: RunCheckpoints | None = None
        self.folder: Path | None = None
        self.is_over = self.is_next_best = False
        self._last: KeptModel | None = None  # as model-last was written in this process
        self._is_saved = True  # at the last time
        self._is_best_missing = False
        self._error_around: BaseException | None = None
        self._asked: list[Callable[[], None]] = []
        self._warned = False

    def open(self, folder: Path | None) -> bool:
        """Begin to write into a folder. Called before spaCy removes the models of an earlier training from it.

        RETURNS (bool): Whether it may: not those of this run, if it is resumed.
        RAISES (ConfigError): The disk has no room for what the run writes there; its checkpoints would be removed, or
            the models of another pipeline.
        """
        self._error_around = sys.exc_info()[1]
        if folder is None:
            return True
        self.folder = folder.absolute()
        for model in (folder / DIR_MODEL_BEST, folder / DIR_MODEL_LAST):
            if self.checkpoints is not None and self.checkpoints.folder.resolve().is_relative_to(model.resolve()):
                raise ConfigError(
                    f"Can't set 'path' in [training.optimizer.checkpoint] to '{self.checkpoints.folder}': spaCy "
                    f"removes '{model}' and everything in it when a training starts. Choose another folder."
                )
            if folder.is_dir():
                clear_leftovers(folder, model.name)
        self._check_room(folder)
        kept, progress = KeptModel.in_folder(folder / DIR_MODEL_BEST), self._progress
        is_ours = kept is not None and kept.run_id == progress.run_id
        if progress.best_step is not None and (kept is None or not is_ours or kept.step < progress.best_step):
            self._warn(
                f"The best model so far, that of step {progress.best_step}, is not in '{folder / DIR_MODEL_BEST}': the "
                "training saves the next better one there. If it was saved in another folder, give that as --output."
            )
        if not is_ours and not (self.checkpoints is not None and self.checkpoints.goes_on):
            self._check_replaced(folder)
        return not is_ours

    def _check_replaced(self, folder: Path) -> None:
        """RAISES (ConfigError): spaCy would remove a model of another pipeline, or of other texts."""
        task = task_of(self._nlp.config.interpolate())
        for model in (folder / DIR_MODEL_BEST, folder / DIR_MODEL_LAST):
            before = task
            with suppress(Exception):  # what is no pipeline has no name here
                before = task_of(load_config(model / "config.cfg", interpolate=True))
            if differences := compare_configs(before, task, words=("there", "now")):
                lines = "\n  ".join(differences)
                raise ConfigError(
                    f"Can't save models to --output '{folder}': spaCy would remove '{model}', which another training "
                    f"has saved:\n  {lines}\nGive another --output. Or remove its models first, if nobody needs them."
                )

    def _check_room(self, folder: Path) -> None:
        there = nearest(folder)
        each = sum(_sizes(self._nlp))
        needed = _MODELS * each
        told = f"{_MODELS} models of {each / 1e6:,.0f} MB ({DIR_MODEL_LAST}, {DIR_MODEL_BEST}, and one being written)"
        if self.checkpoints is not None and self.checkpoints.is_on_disk_of(there):
            needed += self.checkpoints.room()
            most = most_at_once(self.checkpoints.folder, self.checkpoints.settings.keep)
            told += f" and {most} checkpoints"
        free = shutil.disk_usage(there).free
        older = sum(map(_size_of, (folder / DIR_MODEL_LAST, folder / DIR_MODEL_BEST)))
        if free + older < needed:
            and_older = f", and {older / 1e6:,.0f} MB of older models that are replaced" if older else ""
            raise ConfigError(
                f"Can't save models to '{folder}': expected room for {told}, {needed / 1e6:,.0f} MB, found "
                f"{free / 1e6:,.0f} MB free on that disk{and_older}. Make room, or give --output a folder on another "
                "disk."
            )

    # ------------------------------------------------------------------ spaCy's

    def to_disk(self, nlp: Any, path: Path) -> None:
        """Write a model, as spaCy would. nlp (Any): What is saved, as `before_to_disk` gave it.

        Warns if the disk is full, for example.
        RAISES (StateError): It can't be written, and the run is over; or no model can, by an error that does not pass.
        """
        # The training, with an error that is shown. The user's code may train because of another one.
        has_failed = sys.exc_info()[1] is not self._error_around
        if self._is_best_missing:
            self.keep_best()
        try:
            with replacing(path) as unfinished:
                _write(nlp, unfinished)
        except OSError as error:
            self._is_saved = False
            text, advice = f"Can't save the model to '{path}': {error.strerror or error}.", advice_on(error)
            kept = "The model that was saved before is unchanged" if self._has_model else "No model is saved"
            if has_failed:
                after = kept
            elif self._last is None and is_one_of(error, _LASTING):
                self.is_next_best = False  # spaCy tries once more, after the error
                raise StateError(
                    f"Can't save the model to '{path}': {error}. It is the first one since this training began or was "
                    "resumed, and the next would fail too, so the training ends here."
                ) from error
            elif self.is_over:
                raise StateError(f"{text} The training is over, and its last model is lost. {kept}.{advice}") from error
            else:
                after = "Training continues; the next evaluation tries again"
            self._warn(f"{text} {after}.{advice}")
        else:
            self._is_saved, self._last = True, self._of_this_step()
        if self.is_next_best:
            self.keep_best()

    @property
    def _has_model(self) -> bool:
        folder = self.folder
        return folder is not None and any((folder / name).exists() for name in (DIR_MODEL_LAST, DIR_MODEL_BEST))

    def _of_this_step(self) -> KeptModel:
        score = as_float(self._progress.best_score)
        return KeptModel(self._progress.run_id, self._progress.step, math.nan if score is None else score)

    def keep_best(self) -> None:
        """Copy the model that was just saved, as it is the best one."""
        self.is_next_best = False
        if self.folder is None:
            return
        last, best = self.folder / DIR_MODEL_LAST, self.folder / DIR_MODEL_BEST
        if not self._is_saved:
            self._is_best_missing = False
            self._warn(f"The best model so far is not in '{best}', as it could not be saved.")
            return
        try:
            with replacing(best) as unfinished:
                shutil.copytree(last, unfinished)
                if self.checkpoints is not None:
                    (self._last or self._of_this_step()).mark(unfinished)
        except (OSError, shutil.Error) as error:
            self._is_best_missing = not self._is_best_missing  # once more, before `last` is written again
            self._warn(f"Can't copy the best model to '{best}': {_first_line(error)}.{advice_on(error)}")
        else:
            self._is_best_missing = False

    # ------------------------------------------------------------------ on request

    def on_event(self, name: str, event: Event, control: Control) -> None:
        self.keep_asked()
        if name in ("on_save", "on_train_end") and control.should_save and self.checkpoints is None:
            self._save(event.step, f"model-step-{event.step}")

    def keep(self, name: str, score: float, *, step: int, mode: Literal["min", "max"]) -> None:
        """Save the model at the end of the step, in place of the last one of this name, if it is better. Between steps,
        and if the run goes back, at once. Of equal ones, the oldest is better. NaN and infinite ones are never good.

        name (str): Models with this name are compared.
        """
        if math.isfinite(score):
            self._asked.append(partial(self._keep, name, score, step, mode))

    def keep_asked(self) -> None:
        """Save what `keep` was called for. Called when spaCy has written the scores to the meta data, and before params
        change.
        """
        asked, self._asked = self._asked, []
        for keep in asked:
            keep()

    def _keep(self, name: str, score: float, step: int, mode: Literal["min", "max"]) -> None:
        folder = "model-best-" + re.sub(r"[^\w-]+", "-", name)
        new = KeptModel(self._progress.run_id, step, score)
        if self.folder is not None:
            path = self.folder / folder
            before = KeptModel.in_folder(path)
            if before is None and os.path.lexists(path):
                self._warn(f"Can't save the model to '{path}': expected one that a rule has kept, found other files.")
                return
            sign = 1.0 if mode == "min" else -1.0
            if before is not None and before.run_id == new.run_id and sign * score >= sign * before.score:
                return
        self._save(step, folder, new)

    def _save(self, step: int, name: str, kept: KeptModel | None = None) -> None:
        """name (str): Of its folder. kept (KeptModel): It is this one, and may be replaced later."""
        output = self.folder
        if output is None:
            if not self._warned:
                warnings.warn(
                    ConfigWarning(
                        f"Can't save the model after step {step}, which a rule or another listener asked for: this run "
                        "has no folder for models, so it saves none. Run spacy train with --output, or add a block "
                        "[training.optimizer.checkpoint]."
                    ),
                    stacklevel=4,
                )
            self._warned = True
            return
        nlp, path = self._nlp, output / name
        settings = {"before_to_disk": nlp.config.interpolate()["training"].get("before_to_disk")}
        prepare = inspect.unwrap(create_before_to_disk_callback)(registry.resolve(settings)["before_to_disk"])
        try:
            with nlp.use_params(self._optimizer.averages), replacing(path) as unfinished:
                _write(prepare(nlp), unfinished)
                if kept is not None:
                    kept.mark(unfinished)
        except OSError as error:
            self._warn(f"Can't save the model to '{path}': {error}. Training continues.{advice_on(error)}")

    def _warn(self, text: str) -> None:
        warnings.warn(CheckpointWarning(text), stacklevel=5)


def _write(nlp: Any, path: Path) -> None:
    """Write a model, as spaCy would. spaCy raises an error if a score or loss in its meta data is NaN or infinite: it
    becomes None.
    """
    if "performance" in nlp.meta:
        nlp.meta["performance"] = plain_scores(nlp.meta["performance"])
    nlp.to_disk(path)


def _first_line(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    return str(strerror or error).splitlines()[0][:200]


def _size_of(folder: Path) -> int:
    """Bytes of the files in a folder that may be missing."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _sizes(nlp: Language) -> Iterator[int]:
    """Bytes of each array and tensor of a pipeline that is saved."""
    yield int(nlp.vocab.vectors.data.nbytes)
    for _, model in components_with_model(nlp):
        yield from _sizes_of(model)


def _sizes_of(model: Model[Any, Any]) -> Iterator[int]:
    for node in model.walk():
        for name in node.param_names:
            if (value := node.maybe_get_param(name)) is not None:
                yield int(value.nbytes)
        for shim in node.shims:
            module = module_of(shim)
            for tensor in () if module is None else module.parameters():
                yield tensor.numel() * tensor.element_size()
