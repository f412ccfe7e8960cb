"""Labels of entities that the texts bring in the middle of a training.

An entity recognizer of spaCy gets a label when a text first has it: its last layer grows by rows of zeros, for
transitions that it does not choose before an annotation was one. Other components never get labels in a training.

Here it gets them before the step of these texts, in alphabetical order. spaCy adds them in the update of a part of the
batch, in the order of a set: that differs between processes, and the gradients of the parts before would be lost.

A resumed run adds the labels of the saved one in their order before it loads the model. A run that goes back past new
labels keeps them: they begin again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from spacy.attrs import ENT_TYPE
from spacy.language import Language
from spacy.pipeline import EntityRecognizer
from spacy.training import Example

from ..core.labels import layer_of_transitions
from ..core.params import NamedModel
from .model_state import ModelState


class LateLabels:
    """The labels of entities in the batches of a run. exclude (Collection[str]): Components that are not trained."""

    def __init__(self, nlp: Language, exclude: Collection[str]):
        self._nlp = nlp
        self._exclude = exclude
        self._seen: set[str] = set()

    def look(self, batch: Sequence[Example]) -> Callable[[], None] | None:
        """RETURNS (Callable | None): Adds labels that no batch had so far, where a component lacks them. None: there
        are none. The same in all processes, which draw the same batches.
        """
        names = [name for name, _ in _recognizers(self._nlp.pipeline) if name not in self._exclude]
        new = _labels_in(batch) - self._seen if names else set()
        self._seen |= new
        return (lambda: add_late(self._nlp, dict.fromkeys(names, sorted(new)))) if new else None


def late_labels(nlp: Language, at_start: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """By component, the labels of entities that came since the start, in order.

    at_start (Mapping): The names of the transitions of each component at the start.
    """
    found = {}
    for name, pipe in _recognizers(nlp.components):
        had, moves = [*at_start.get(name, ())], [str(move) for move in pipe.move_names]
        if len(moves) > len(had) and moves[: len(had)] == had:
            found[name] = [*dict.fromkeys(move.partition("-")[2] for move in moves[len(had) :])]
    return found


def add_late(nlp: Language, labels: Mapping[str, Iterable[str]]) -> None:
    """Add labels to entity recognizers, as spaCy does in a training. Those that they have are left alone."""
    for name, pipe in _recognizers(nlp.components):
        for label in labels.get(name, ()):
            pipe.add_label(label)


def grown_params(nlp: Language, names: Collection[str], walked: Iterable[NamedModel]) -> set[str]:
    """The names of the params that labels of entities make larger. names (Collection[str]): Of components."""
    layers = {id(layer_of_transitions(pipe)) for name, pipe in _recognizers(nlp.components) if name in names}
    return {found.name for model in walked for found in model.params if id(found.owner) in layers}


def with_late_rows(nlp: Language, saved: ModelState, walked: Sequence[NamedModel]) -> ModelState:
    """A saved model of this run, with rows for the labels of entities that came since. They are as new ones.

    walked (Sequence[NamedModel]): From `walk_pipeline`.
    """
    params, attrs = dict(saved.params), dict(saved.attrs)
    for name, pipe in _recognizers(nlp.components):
        names = grown_params(nlp, [name], walked)
        layer, n_before = layer_of_transitions(pipe), None
        for found in (found for model in walked for found in model.params if found.name in names):
            old, now = params.get(found.name), found.values
            if old is None or now is None or len(old.shape) != len(now.shape):
                continue
            if old.shape != tuple(now.shape) and all(one <= other for one, other in zip(old.shape, now.shape)):
                larger = torch.zeros(tuple(now.shape), dtype=old.dtype)
                larger[tuple(map(slice, old.shape))] = old
                params[found.name] = larger
                n_before = old.shape[0] if found.key[1] == "b" else n_before  # type: ignore[index]
        if n_before is not None:
            first, *rest = attrs[name]
            new = range(n_before, layer.get_dim("nO"))
            attrs[name] = [first | {"unseen_classes": {*first["unseen_classes"], *new}}, *rest]
    return replace(saved, params=params, attrs=attrs)


def _recognizers(components: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    return ((name, pipe) for name, pipe in components if isinstance(pipe, EntityRecognizer))


def _labels_in(batch: Iterable[Example]) -> set[str]:
    found: set[str] = set()
    for example in batch:
        for doc in (example.predicted, example.reference):
            keys = {*doc.to_array(ENT_TYPE).tolist()} - {0}
            found.update(doc.vocab.strings[key] for key in keys)
    return found
