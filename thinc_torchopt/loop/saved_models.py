"""Save models on the request of rules or other listeners, beside spaCy's own: `model-step-120` in a run without
checkpoints, and the best ones by a score.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from spacy.language import Language
from spacy.training.loop import create_before_to_disk_callback
from spacy.util import registry

from ..core.errors import CheckpointWarning, ConfigWarning
from ..core.optimizer import TorchOptimizer
from ..core.schema import AnyNumber, Count, read, write
from ..core.state import replacing
from .events import Control, Save, TrainEnd
from .output_folder import OutputFolder

# In the folder of a model that may be removed again: what it is.
_MARK = "kept-as-best.json"


@dataclass
class KeptModel:
    """One of the best models. name (str): Of the operation that keeps it."""

    name: str
    step: Count
    score: AnyNumber

    @property
    def folder(self) -> str:
        return f"model-{re.sub(r'[^0-9A-Za-z_-]+', '-', self.name)}-{self.step}"

    def is_in(self, path: Path) -> bool:
        """Whether a folder is one that this class has saved: of the same operation and step."""
        try:
            found = json.loads((path / _MARK).read_text()) if path.is_dir() and not path.is_symlink() else None
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and (found.get("name"), found.get("step")) == (self.name, self.step)


@dataclass
class SavedModelsState:
    """The saved state of `SavedModels`. kept (list): The best models, in the order in which they were saved."""

    kept: list[KeptModel] = field(default_factory=list)


class SavedModels:
    """Saves the model as spaCy would: with averages, if there are some, and after `before_to_disk`. A listener.

    nlp (Language), optimizer (TorchOptimizer): The run's.
    output (OutputFolder | None): Of a run with checkpoints, where requests to save are for those.
    """

    name = "saved models"

    def __init__(self, nlp: Language, optimizer: TorchOptimizer, output: OutputFolder | None = None):
        self._nlp = nlp
        self._optimizer = optimizer
        self._of_checkpoints = output
        self._output: Path | None = None
        self._kept: list[KeptModel] = []
        self._asked: list[Callable[[], None]] = []
        self._warned = False

    def before_cleaning(self, output: Path | None) -> None:
        """Called before spaCy removes its old models. Ours stay."""

    def after_cleaning(self, output: Path | None) -> None:
        """Called after that. output (Path | None): The folder where spaCy saves models."""
        self._output = None if output is None else output.absolute()

    def on_save(self, event: Save, control: Control) -> None:
        if control.should_save and self._of_checkpoints is None:
            self._save(f"model-step-{event.step}", event.step)

    def on_train_end(self, event: TrainEnd, control: Control) -> None:
        self.keep_asked()
        if control.should_save and self._of_checkpoints is None:
            self._save(f"model-step-{event.step}", event.step)

    def keep(self, name: str, score: float, *, step: int, at_most: int, mode: Literal["min", "max"]) -> None:
        """Save the model at the end of the step if it is one of the best, and remove the worst one if there are too
        many. Of equal ones, the oldest is better. NaN and infinite ones are never good.

        name (str): Models with this name are compared.
        """
        if math.isfinite(score):
            self._asked.append(partial(self._keep, name, score, step, at_most, mode))

    def keep_asked(self) -> None:
        """Save what `keep` was called for. Called when spaCy has written the scores to the meta data."""
        asked, self._asked = self._asked, []
        for keep in asked:
            keep()

    def _keep(self, name: str, score: float, step: int, at_most: int, mode: Literal["min", "max"]) -> None:
        others = [one for one in self._kept if one.name == name and one.step != step]
        sign = 1.0 if mode == "min" else -1.0
        found = sorted([*others, KeptModel(name, step, score)], key=lambda one: (sign * one.score, one.step))
        best, left_out = found[:at_most], found[at_most:]
        if all(one.step != step for one in best) or not self._save(KeptModel(name, step, score).folder, step, best):
            return
        for one in left_out:
            self._remove(one)
        self._kept = [one for one in self._kept if one.name != name] + best

    # ------------------------------------------------------------------ state

    def state_dict(self) -> Mapping[str, Any]:
        return write(SavedModelsState(self._kept)) if self._kept else {}

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): The state is invalid."""
        self._kept = read(SavedModelsState, state, "the saved models").kept

    # ------------------------------------------------------------------ folders

    def _save(self, name: str, step: int, best: list[KeptModel] | None = None) -> bool:
        """RETURNS (bool): Whether the model was saved. best (list): It is one of these, and may be removed later."""
        output = self._output if self._of_checkpoints is None else self._of_checkpoints.path
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
            return False
        nlp, path = self._nlp, output / name
        mark = next((one for one in best or () if one.step == step), None)
        if mark is not None and path.exists() and not mark.is_in(path):
            self._warn(f"Can't save the model to '{path}': something else is there. Move it.")
            return False
        settings = {"before_to_disk": nlp.config.interpolate()["training"].get("before_to_disk")}
        prepare = create_before_to_disk_callback(registry.resolve(settings)["before_to_disk"])
        try:
            with nlp.use_params(self._optimizer.averages), replacing(path) as unfinished:
                prepare(nlp).to_disk(unfinished)
                if mark is not None:
                    (Path(unfinished) / _MARK).write_text(json.dumps(asdict(mark)))
        except OSError as error:
            self._warn(f"Can't save the model to '{path}': {error}. Training continues. Make room on the disk.")
            return False
        return True

    def _remove(self, model: KeptModel) -> None:
        """Remove a model that is no longer one of the best, if it is still the one that was saved."""
        output = self._output if self._of_checkpoints is None else self._of_checkpoints.path
        if output is None or not (path := output / model.folder).exists():
            return
        if not model.is_in(path):
            self._warn(f"Can't remove '{path}': expected the model of step {model.step}, found something else.")
            return
        try:
            shutil.rmtree(path)
        except OSError as error:
            self._warn(f"Can't remove '{path}': {error}. Training continues.")

    def _warn(self, text: str) -> None:
        warnings.warn(CheckpointWarning(text), stacklevel=5)
