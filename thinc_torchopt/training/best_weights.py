"""Keep the best weights of each component during a training, and combine them at its end.

Components are best at different steps. If they share no layers, each can get the weights of its best step. The kept
weights are those that were evaluated (averages, if there are some): one copy in main memory and in each checkpoint.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spacy.language import Language
from thinc.api import Model

from ..controller import BestWeightsControl
from ..errors import ControllerError
from ..optimizers import TorchOptimizer
from ..params import components_with_model, trainable_components
from ..schema import AnyNumber, Count, read, write
from ..state import in_main_memory
from .events import Control, Evaluate
from .model_state import ModelState, check_model, collect_model, restore_model

logger = logging.getLogger("spacy.torchopt")

_PARTS = ("params", "modules", "attrs")


@dataclass
class Kept:
    """The best weights of a component. model (ModelState): The component's part of a model."""

    score: AnyNumber
    step: Count
    model: ModelState


@dataclass
class BestWeightsState:
    """The saved state of `BestWeights`."""

    is_asked: bool
    kept: dict[str, Kept]


class BestWeights:
    """Keeps the best weights of components. A listener.

    nlp (Language), optimizer (TorchOptimizer), exclude (Collection[str]): The run's.
    settings (BestWeightsControl): Which components, and by which scores.
    RAISES (ControllerError): A component listens to another one, or has no score of its own.

    Public: `is_asked` (whether to combine them at the end), `kept` (by component), `steps` (the best step of each
    component).
    """

    name = "best weights"

    def __init__(
        self, nlp: Language, optimizer: TorchOptimizer, exclude: Collection[str], settings: BestWeightsControl
    ):
        self._nlp = nlp
        self._optimizer = optimizer
        self._weights = _weights_of_scores(nlp, exclude, settings)
        self._names = _names_in_paths(nlp)
        self.kept: dict[str, Kept] = {}
        self.is_asked = False
        _check_apart(nlp, list(self._weights))

    @property
    def steps(self) -> dict[str, int]:
        return {name: kept.step for name, kept in self.kept.items()}

    def on_evaluate(self, event: Evaluate, control: Control) -> None:
        better = {}
        for name, weights in self._weights.items():
            score = self._score_of(name, weights, event.scores)
            if not math.isnan(score) and (name not in self.kept or score > self.kept[name].score):
                better[name] = score
        if better:
            model = self._evaluated()
            for name, score in better.items():
                self.kept[name] = Kept(score, event.step, _part_of(model, self._names[name]))

    def _score_of(self, name: str, weights: Mapping[str, float], scores: Mapping[str, Any]) -> float:
        known = {key: weight for key, weight in weights.items() if scores.get(key) is not None}
        if not known:
            raise ControllerError(
                f"Can't keep the best weights of '{name}': expected one of {', '.join(weights)} among the scores, "
                f"found {', '.join(sorted(scores))}. Name its score in 'scores' of the BestWeightsControl, or remove "
                "it from 'components'."
            )
        return sum(weight * float(scores[key]) for key, weight in known.items()) / sum(known.values())

    def _evaluated(self) -> ModelState:
        """A copy of the model with the weights that are evaluated."""
        with self._nlp.use_params(self._optimizer.averages):
            copied: ModelState = in_main_memory(collect_model(self._nlp), copy=True)
        return copied

    # ------------------------------------------------------------------ at the end

    def put_together(self) -> None:
        """Give each component its best weights, and the others the weights that are evaluated. This clears the
        averages.
        """
        model = self._evaluated()
        for name, kept in list(self.kept.items()):
            whole = replace(model, **{part: getattr(model, part) | getattr(kept.model, part) for part in _PARTS})
            try:
                check_model(self._nlp, whole)
            except ValueError:
                logger.warning("'%s' stays as it is: it has grown since it was best, at step %d.", name, kept.step)
                del self.kept[name]
            else:
                model = whole
        restore_model(self._nlp, model)
        self._optimizer.end_training()

    def report(self, score: float, best: float) -> None:
        """Log the result. score (float): Score of the combined model. best (float): Score of the best model so far."""
        parts = ", ".join(f"'{name}' of step {kept.step} ({kept.score:.4f})" for name, kept in self.kept.items())
        logger.info("Put together the best weights of components: %s. The score is %.4f.", parts, score)
        if score < best:
            logger.warning("That is below the score of model-best, %.4f, which stays. It is saved as model-last.", best)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> Mapping[str, Any]:
        return write(self, BestWeightsState)

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): The state is invalid."""
        saved = read(BestWeightsState, state, "the best weights of components")
        self.is_asked = saved.is_asked
        self.kept = {name: in_main_memory(saved.kept[name], copy=True) for name in self._weights if name in saved.kept}


def _weights_of_scores(
    nlp: Language, exclude: Collection[str], settings: BestWeightsControl
) -> dict[str, dict[str, float]]:
    """The scores of each component whose weights are kept, with their weights."""
    in_all = {key: weight for key, weight in nlp.config["training"]["score_weights"].items() if weight}
    models = {id(model) for _, model in trainable_components(nlp, exclude)}
    trained = [name for name, proc in nlp.pipeline if id(getattr(proc, "model", None)) in models]
    defaults = {name: nlp.get_pipe_meta(name).default_score_weights or {} for name in trained}
    own = {name: {key: weight for key, weight in found.items() if weight} for name, found in defaults.items()}
    wanted = settings.components or [name for name in trained if own[name] or name in settings.scores]
    weights = {}
    for name in [*wanted, *(name for name in settings.scores if name not in wanted)]:
        if name not in trained or name not in wanted:
            raise _refused(name, f"a component that is trained ({', '.join(trained)})", "another one", "Remove it.")
        if name in settings.scores:
            weights[name] = {settings.scores[name]: 1.0}
            continue
        others = [other for other in trained if other != name and own[other].keys() & own[name].keys()]
        if not own[name] or others:
            found = f"those of '{others[0]}' too" if others else "none"
            raise _refused(name, "scores of its own", found, "Name its score in 'scores'.")
        weights[name] = {key: in_all[key] for key in own[name] if key in in_all} or own[name]
    return weights


def _check_apart(nlp: Language, names: Collection[str]) -> None:
    """RAISES (ControllerError): A component shares layers with another one."""
    owners: dict[int, str] = {}
    for name, proc in nlp.components:
        model = getattr(proc, "model", None)
        for node in model.walk() if isinstance(model, Model) else ():
            other = owners.setdefault(node.id, name)
            if name in names and hasattr(node, "upstream_name"):
                upstream = "a shared component" if node.upstream_name == "*" else f"'{node.upstream_name}'"
                raise _refused(name, "a component with layers of its own", f"one that listens to {upstream}", _ADVICE)
            if other != name and {other, name} & set(names):
                shared = name if other in names else other
                raise _refused(other if other in names else name, "layers of its own", f"some of '{shared}'", _ADVICE)


_ADVICE = (
    "Its best weights only work with the shared layers of the same step. Give it a tok2vec of its own, or remove it "
    "from 'components'."
)


def _refused(name: str, expected: str, found: str, advice: str) -> ControllerError:
    return ControllerError(
        f"Can't keep the best weights of '{name}' for a BestWeightsControl: expected {expected}, found {found}. "
        f"{advice}"
    )


def _names_in_paths(nlp: Language) -> dict[str, str]:
    """The names of components as they are written in names of params."""
    with_model = {id(model): escaped for escaped, model in components_with_model(nlp)}
    return {
        name: with_model[id(model)]
        for name, proc in nlp.components
        if id(model := getattr(proc, "model", None)) in with_model
    }


def _part_of(model: ModelState, name: str) -> ModelState:
    """The part of a model that belongs to one component."""

    def of_component(part: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in part.items() if key == name or key.startswith(f"{name}/")}

    parts: dict[str, Any] = {part: of_component(getattr(model, part)) for part in _PARTS}
    return ModelState(**parts)
