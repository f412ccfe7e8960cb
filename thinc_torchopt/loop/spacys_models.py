"""spaCy's model-last and model-best, written whole or not at all: a full disk does not end a training.

spaCy writes over model-last, and removes model-best before it copies the better one. Here each is written beside the
old one first. If that fails, the training goes on, and the next save tries again; unless no model could be saved yet,
by an error that does not pass, as of a disk that is read-only.
"""

from __future__ import annotations

import errno
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from spacy.language import Language
from spacy.training.loop import DIR_MODEL_BEST, DIR_MODEL_LAST
from thinc.api import Model

from ..core.errors import CheckpointWarning, ConfigError, StateError
from ..core.host import module_of
from ..core.params import components_with_model
from ..core.state import advice_on, clear_leftovers, is_one_of, replacing
from .checkpoint import RunCheckpoints
from .checkpoint_folder import most_at_once, nearest
from .saved_models import write_model

# At each save but the first: the two of the save before stay until the new one is whole.
_MODELS: Final = 3
# Errors that don't pass, unlike those of a full disk, of one on a network, of a busy system.
_LASTING: Final = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL),
)


class SpacysModels:
    """Writes the models that spaCy saves in a run.

    nlp (Language): The run's pipeline.

    Public: `checkpoints` (of the run, which need room too), `is_over` (whether the run has ended: then a model that
    can't be saved is an error), `has_folder` (whether there is a folder, and so a best model to keep), `is_next_best`
    (whether the model that is saved next is the best).
    """

    def __init__(self, nlp: Language):
        self._nlp = nlp
        self.checkpoints: RunCheckpoints | None = None
        self._folder: Path | None = None
        self._is_saved = True  # at the last time
        self._has_saved = False  # at any time in this process
        self._is_best_missing = False
        self.is_over = self.is_next_best = False
        self._error_around: BaseException | None = None

    @property
    def _has_model(self) -> bool:
        folder = self._folder
        return folder is not None and any((folder / name).exists() for name in (DIR_MODEL_LAST, DIR_MODEL_BEST))

    @property
    def has_folder(self) -> bool:
        return self._folder is not None

    def open(self, folder: Path | None) -> None:
        """Begin to write into a folder. Called before spaCy removes the models of an earlier training from it.

        RAISES (ConfigError): The disk has no room for what the run writes there.
        """
        self._folder = folder
        self._error_around = sys.exc_info()[1]
        if folder is None:
            return
        if folder.is_dir():
            for name in (DIR_MODEL_LAST, DIR_MODEL_BEST):
                clear_leftovers(folder, name)
        there = nearest(folder)
        replaced = [folder / DIR_MODEL_LAST, folder / DIR_MODEL_BEST]
        each = sum(_sizes(self._nlp))
        needed = _MODELS * each
        told = f"{_MODELS} models of {each / 1e6:,.0f} MB ({DIR_MODEL_LAST}, {DIR_MODEL_BEST}, and one being written)"
        if self.checkpoints is not None and self.checkpoints.is_on_disk_of(there):
            replaced.append(self.checkpoints.output.best.path)
            needed += each + self.checkpoints.room()
            most = most_at_once(self.checkpoints.folder, self.checkpoints.settings.keep)
            told += f", a copy of the best one and {most} checkpoints"
        free, older = shutil.disk_usage(there).free, sum(map(_size_of, replaced))
        if free + older < needed:
            and_older = f", and {older / 1e6:,.0f} MB of older models that are replaced" if older else ""
            raise ConfigError(
                f"Can't save models to '{folder}': expected room for {told}, {needed / 1e6:,.0f} MB, found "
                f"{free / 1e6:,.0f} MB free on that disk{and_older}. Make room, or give --output a folder on another "
                "disk."
            )

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
                write_model(nlp, unfinished)
        except OSError as error:
            self._is_saved = False
            text, advice = f"Can't save the model to '{path}': {error.strerror or error}.", advice_on(error)
            kept = "The model that was saved before is unchanged" if self._has_model else "No model is saved"
            if has_failed:
                after = kept
            elif not self._has_saved and is_one_of(error, _LASTING):
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
            self._is_saved = self._has_saved = True
        if self.is_next_best:
            self.keep_best()

    def keep_best(self) -> None:
        """Copy the model that was just saved, as it is the best one."""
        self.is_next_best = False
        if self._folder is None:
            return
        last, best = self._folder / DIR_MODEL_LAST, self._folder / DIR_MODEL_BEST
        if not self._is_saved:
            self._is_best_missing = False
            self._warn(f"The best model so far is not in '{best}', as it could not be saved.")
            return
        try:
            with replacing(best) as unfinished:
                shutil.copytree(last, unfinished)
        except (OSError, shutil.Error) as error:
            self._is_best_missing = not self._is_best_missing  # once more, before `last` is written again
            self._warn(f"Can't copy the best model to '{best}': {_first_line(error)}.{advice_on(error)}")
        else:
            self._is_best_missing = False

    def _warn(self, text: str) -> None:
        warnings.warn(CheckpointWarning(text), stacklevel=4)


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
