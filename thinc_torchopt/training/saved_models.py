"""Save models on the request of rules or other listeners, in a run without checkpoints: `model-step-120`, beside
spaCy's own.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from spacy.language import Language
from spacy.training.loop import create_before_to_disk_callback
from spacy.util import registry

from ..errors import CheckpointWarning, ConfigWarning
from ..optimizers import TorchOptimizer
from ..state import replacing
from .events import Control, Save, TrainEnd


class SavedModels:
    """Saves the model as spaCy would: with averages, if there are some, and after `before_to_disk`. A listener.

    nlp (Language), optimizer (TorchOptimizer): The run's.
    """

    name = "saved models"

    def __init__(self, nlp: Language, optimizer: TorchOptimizer):
        self._nlp = nlp
        self._optimizer = optimizer
        self._output: Path | None = None
        self._warned = False

    def before_cleaning(self, output: Path | None) -> None:
        """Called before spaCy removes its old models. Ours stay."""

    def after_cleaning(self, output: Path | None) -> None:
        """Called after that. output (Path | None): The folder where spaCy saves models."""
        self._output = None if output is None else output.absolute()

    def on_save(self, event: Save, control: Control) -> None:
        if control.should_save:
            self._save(event.step)

    def on_train_end(self, event: TrainEnd, control: Control) -> None:
        if control.should_save:
            self._save(event.step)

    def _save(self, step: int) -> None:
        if self._output is None:
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
        nlp, path = self._nlp, self._output / f"model-step-{step}"
        settings = {"before_to_disk": nlp.config.interpolate()["training"].get("before_to_disk")}
        prepare = create_before_to_disk_callback(registry.resolve(settings)["before_to_disk"])
        try:
            with nlp.use_params(self._optimizer.averages), replacing(path) as unfinished:
                prepare(nlp).to_disk(unfinished)
        except OSError as error:
            warnings.warn(
                CheckpointWarning(
                    f"Can't save the model to '{path}': {error}. Training continues. Make room on the disk."
                ),
                stacklevel=4,
            )
