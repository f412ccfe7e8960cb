"""The folder to which spaCy saves the models of a run. It removes them when the run is started again: so the best is
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
    """Where spaCy saves models: the best one is kept beside the checkpoints, and comes back in a run that goes on.

    checkpoints (Path): The folder of the checkpoints.

    Public: `best` (the copy), `best_step` (of the run that goes on, or None), `goes_on` (whether it does).
    """

    def __init__(self, checkpoints: Path):
        self.best = BestModel(checkpoints)
        self.best_step: int | None = None
        self.goes_on = False
        self._checkpoints = checkpoints
        self._path: Path | None = None

    def before_cleaning(self, output: Path | None) -> None:
        """spaCy is about to remove old models from a folder.

        RAISES (ConfigError): The checkpoints would go with them.
        """
        for model in _models_in(output):
            if self._checkpoints.resolve().is_relative_to(model.resolve()):
                raise ConfigError(
                    f"Can't set 'path' in [training.optimizer.checkpoint] to '{self._checkpoints}': spaCy removes "
                    f"'{model}' and everything in it when a training starts. Choose another folder."
                )

    def after_cleaning(self, output: Path | None) -> None:
        """spaCy has removed them: the best model of a run that goes on comes back."""
        self._path = None if output is None else output.absolute()
        self.put_best_back()

    def put_best_back(self) -> None:
        """If a run goes on, put the best model where spaCy has it, unless there is one. If that can't be done, that is
        a warning.
        """
        if not self.goes_on or self._path is None or not self.best.is_there or not self._path.is_dir():
            return
        model_best, _ = _models_in(self._path)
        if model_best.exists():
            return
        try:
            step = self.best.put_back(model_best)
        except (OSError, StateError) as error:
            warnings.warn(
                CheckpointWarning(
                    f"Can't restore the best model so far to '{model_best}': {error} Training goes on, and saves the "
                    "next better model there."
                ),
                stacklevel=4,
            )
        else:
            if self.best_step is not None and step < self.best_step:
                warnings.warn(
                    CheckpointWarning(
                        f"The model in '{model_best}' is that of step {step}. The model of step {self.best_step} was "
                        "better, but could not be kept."
                    ),
                    stacklevel=4,
                )

    def look_up(self, info: Mapping[str, Any]) -> None:
        """Find out where the folder is, if spaCy did not tell before: it adds that to what loggers get."""
        if self._path is None and "output_path" in info:
            self._path = Path(info["output_path"]).absolute().parent

    def keep_best(self, step: int) -> None:
        """Keep what spaCy has just saved as the best model. RAISES (OSError): The disk is full, for example."""
        models = _models_in(self._path)
        if models and models[0].is_dir():
            self.best.keep(models[0], step)


def _models_in(output: Path | None) -> list[Path]:
    """Where spaCy saves the best model and the last one."""
    return [] if output is None else [output / DIR_MODEL_BEST, output / DIR_MODEL_LAST]
