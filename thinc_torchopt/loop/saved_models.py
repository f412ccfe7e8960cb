"""The models of a run, in the folder where spaCy saves them.

`SavedModels` saves more of them, on the request of rules or other listeners: `model-step-120` in a run without
checkpoints, and the best one by another score.

`OutputFolder` is the folder of a run with checkpoints. spaCy removes its models when the run starts again, so a copy of
the best one is kept beside the checkpoints (`BestModel`). To keep spaCy from cleaning the folder would not do. A
resumed run may save elsewhere. And before spaCy writes a better model it removes the last one: a run that is killed
there, and that is not repeated to the last bit, on a GPU or with another config, may not get better than the removed
model again. Nor would hard links do: writing to one of two linked files changes the other.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from spacy.language import Language
from spacy.training.loop import DIR_MODEL_BEST, DIR_MODEL_LAST, create_before_to_disk_callback
from spacy.util import registry

from ..core.errors import CheckpointWarning, ConfigError, ConfigWarning, StateError
from ..core.optimizer import TorchOptimizer
from ..core.schema import AnyNumber, Count, read, write
from ..core.state import advice_on, clear_leftovers, crc32_of, replacing
from .events import Control, EpochBegin, EpochEnd, Save, TrainEnd
from .progress import Progress, plain_scores

# In the copy of the best model: its step, and checksums.
_MANIFEST = "torchopt-manifest.json"
# In the folder of a model that may be replaced: what it is.
_MARK = "kept-as-best.json"


class OutputFolder:
    """spaCy's output folder. The best model is kept beside the checkpoints, and put back in a resumed run.

    checkpoints (Path): The folder of the checkpoints.

    Public: `path` (the folder; None: unknown, or there is none), `best` (the copy), `best_step` (of a resumed run,
    or None), `goes_on` (whether the run is resumed).
    """

    def __init__(self, checkpoints: Path):
        self.best = BestModel(checkpoints)
        self.best_step: int | None = None
        self.goes_on = False
        self._checkpoints = checkpoints
        self.path: Path | None = None

    def before_cleaning(self, output: Path | None) -> None:
        """Called before spaCy removes old models from a folder.

        RAISES (ConfigError): The checkpoints would go with them.
        """
        for model in _models_in(output):
            if self._checkpoints.resolve().is_relative_to(model.resolve()):
                raise ConfigError(
                    f"Can't set 'path' in [training.optimizer.checkpoint] to '{self._checkpoints}': spaCy removes "
                    f"'{model}' and everything in it when a training starts. Choose another folder."
                )

    def after_cleaning(self, output: Path | None) -> None:
        """Called after that. Puts the best model of a resumed run back."""
        self.path = None if output is None else output.absolute()
        self.put_best_back()

    def put_best_back(self) -> None:
        """In a resumed run, put the best model into spaCy's folder, unless there is one. Warns if that fails."""
        if not self.goes_on or self.path is None or not self.best.is_there or not self.path.is_dir():
            return
        model_best, _ = _models_in(self.path)
        if model_best.exists():
            return
        try:
            step = self.best.put_back(model_best)
        except (OSError, StateError) as error:
            warnings.warn(
                CheckpointWarning(
                    f"Can't restore the best model so far to '{model_best}': {error} Training continues, and saves the "
                    "next better model there."
                ),
                stacklevel=4,
            )
        else:
            if self.best_step is not None and step < self.best_step:
                warnings.warn(
                    CheckpointWarning(
                        f"The model in '{model_best}' is that of step {step}. The model of step {self.best_step} was "
                        "better, but could not be saved."
                    ),
                    stacklevel=4,
                )

    def look_up(self, info: Mapping[str, Any]) -> None:
        """Find the folder, if it is not known yet: spaCy adds it to the log entry."""
        if self.path is None and "output_path" in info:
            self.path = Path(info["output_path"]).absolute().parent

    def keep_best(self, step: int) -> None:
        """Copy the best model that spaCy has just saved. RAISES (OSError): The disk is full, for example."""
        models = _models_in(self.path)
        if models and models[0].is_dir():
            self.best.keep(models[0], step)


def _models_in(output: Path | None) -> list[Path]:
    """The paths where spaCy saves the best model and the last one."""
    return [] if output is None else [output / DIR_MODEL_BEST, output / DIR_MODEL_LAST]


class BestModel:
    """A copy of the model that spaCy wrote, with our manifest of checksums.

    folder (Path): The folder of the checkpoints.
    """

    def __init__(self, folder: Path):
        self.path = folder / "best"

    @property
    def is_there(self) -> bool:
        """Whether there is a copy."""
        return (self.path / _MANIFEST).is_file()

    def check_place(self) -> None:
        """Check that the copy can be kept. RAISES (ConfigError): Something else is in its place."""
        if (
            os.path.lexists(self.path)
            and not self.is_there
            and not (self.path.is_dir() and not any(self.path.iterdir()))
        ):
            raise ConfigError(
                f"Can't keep the best model in '{self.path}': expected a copy made by this package, or nothing, found "
                "other files. They were not changed. Move them elsewhere, or set 'path' in "
                "[training.optimizer.checkpoint] to a folder for this run alone."
            )

    def keep(self, model: Path, step: int) -> None:
        """Copy a model here. step (int): The step after which it was the best.

        RAISES (OSError): The disk is full, for example. The old copy is unchanged.
        """
        with replacing(self.path) as unfinished:
            shutil.copytree(model, unfinished)
            (unfinished / _MANIFEST).write_text(_manifest_of(unfinished, step), encoding="utf8")

    def put_back(self, model: Path) -> int:
        """Copy it to the place where spaCy keeps the best model.

        model (Path): Must not exist yet.
        RETURNS (int): The step of the model.
        RAISES (StateError): The copy is damaged. (OSError): The disk is full, for example. `model` does not exist then.
        """
        manifest = self._read_manifest()
        clear_leftovers(model.parent, model.name)
        with replacing(model) as unfinished:
            shutil.copytree(self.path, unfinished, ignore=lambda folder, names: {_MANIFEST} & set(names))
            # Checks the new copy, and so the old one too.
            if _checksums(unfinished) != manifest["files"]:
                raise StateError(
                    f"Can't use the best model in '{self.path}': expected its files as they were written, found "
                    "others. It is damaged, or another program changed it."
                )
        step: int = manifest["step"]
        return step

    def remove(self) -> None:
        """Remove the copy, if there is one."""
        if self.is_there and not self.path.is_symlink():
            shutil.rmtree(self.path, ignore_errors=True)

    def _read_manifest(self) -> dict[str, Any]:
        try:
            manifest = json.loads((self.path / _MANIFEST).read_text(encoding="utf8"))
            return {"step": int(manifest["step"]), "files": dict(manifest["files"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"Can't use the best model in '{self.path}': expected {_MANIFEST}, found {type(error).__name__}: "
                f"{error}. It is damaged."
            ) from error


def _manifest_of(folder: Path, step: int) -> str:
    return json.dumps({"step": step, "files": _checksums(folder)}, sort_keys=True)


def _checksums(folder: Path) -> dict[str, list[int]]:
    """Size and checksum of each file below a folder, by its path there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, crc32_of(path)] for path in files}


# ---------------------------------------------------------------------- models on request


def write_model(nlp: Language, path: Path) -> None:
    """Write a model, as spaCy would. spaCy raises an error if a score or loss in its meta data is NaN or infinite: it
    becomes None.
    """
    if "performance" in nlp.meta:
        nlp.meta["performance"] = plain_scores(nlp.meta["performance"])
    nlp.to_disk(path)


@dataclass
class KeptModel:
    """The best model by a score. run_id (str): Of the run that saved it."""

    run_id: str
    step: Count
    score: AnyNumber


def _kept_in(folder: Path) -> KeptModel | None:
    """The model that is kept in a folder. None: there is none."""
    try:
        return None if folder.is_symlink() else read(KeptModel, json.loads((folder / _MARK).read_text()), str(folder))
    except (OSError, ValueError):
        return None


class SavedModels:
    """Saves the model as spaCy would: with averages, if there are some, and after `before_to_disk`. A listener.

    nlp (Language), optimizer (TorchOptimizer), progress (Progress): The run's.
    output (OutputFolder | None): Of a run with checkpoints, where requests to save are for those.
    """

    name = "saved models"

    def __init__(
        self, nlp: Language, optimizer: TorchOptimizer, progress: Progress, output: OutputFolder | None = None
    ):
        self._nlp = nlp
        self._optimizer = optimizer
        self._progress = progress
        self._of_checkpoints = output
        self._output: Path | None = None
        self._asked: list[Callable[[], None]] = []
        self._warned = False

    @property
    def folder(self) -> Path | None:
        """The folder where spaCy saves models. None: unknown, or there is none."""
        return self._output if self._of_checkpoints is None else self._of_checkpoints.path

    def before_cleaning(self, output: Path | None) -> None:
        """Called before spaCy removes its old models. Ours stay."""

    def after_cleaning(self, output: Path | None) -> None:
        """Called after that. output (Path | None): The folder where spaCy saves models."""
        self._output = None if output is None else output.absolute()

    def on_save(self, event: Save, control: Control) -> None:
        self.keep_asked()
        if control.should_save and self._of_checkpoints is None:
            self._save(event.step, f"model-step-{event.step}")

    def on_epoch_end(self, event: EpochEnd, control: Control) -> None:
        self.keep_asked()

    def on_epoch_begin(self, event: EpochBegin, control: Control) -> None:
        self.keep_asked()

    def on_train_end(self, event: TrainEnd, control: Control) -> None:
        self.keep_asked()
        if control.should_save and self._of_checkpoints is None:
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
            before = _kept_in(path)
            if before is None and os.path.lexists(path):
                self._warn(f"Can't save the model to '{path}': expected one that a rule has kept, found other files.")
                return
            sign = 1.0 if mode == "min" else -1.0
            if before is not None and before.run_id == new.run_id and sign * score >= sign * before.score:
                return
        self._save(step, folder, new)

    # ------------------------------------------------------------------ folders

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
                write_model(prepare(nlp), unfinished)
                if kept is not None:
                    (Path(unfinished) / _MARK).write_text(json.dumps(write(kept)))
        except OSError as error:
            self._warn(f"Can't save the model to '{path}': {error}. Training continues.{advice_on(error)}")

    def _warn(self, text: str) -> None:
        warnings.warn(CheckpointWarning(text), stacklevel=5)
