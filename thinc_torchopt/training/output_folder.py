"""The folder where spaCy saves the models of a run. spaCy removes them when the run starts again, so the best one is
kept elsewhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spacy.training.loop import DIR_MODEL_BEST, DIR_MODEL_LAST

from ..errors import CheckpointWarning, ConfigError, StateError
from .best_model import BestModel


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
