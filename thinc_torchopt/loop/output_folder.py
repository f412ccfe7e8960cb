"""The folder where spaCy saves the models of a run. spaCy removes them when the run starts again, so a copy of the best
one is kept beside the checkpoints.

To keep spaCy from cleaning the folder would not do. A resumed run may save elsewhere. And before spaCy writes a better
model it removes the last one: a run that is killed there, and that is not repeated to the last bit, on a GPU or with
another config, may not get better than the removed model again. Nor would hard links do: writing to one of two linked
files changes the other.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spacy.training.loop import DIR_MODEL_BEST, DIR_MODEL_LAST

from ..core.errors import CheckpointWarning, ConfigError, StateError
from ..core.state import clear_leftovers, crc32_of, replacing

_MANIFEST = "torchopt-manifest.json"


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
