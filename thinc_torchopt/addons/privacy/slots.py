"""The params that are trained, and where a gradient goes.

Components are those whose update of a batch is the sum of the updates of its examples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from spacy.language import Language
from spacy.pipeline import (
    DependencyParser,
    EditTreeLemmatizer,
    EntityRecognizer,
    Morphologizer,
    SentenceRecognizer,
    Tagger,
    TextCategorizer,
    Tok2Vec,
)
from spacy.pipeline.textcat_multilabel import MultiLabel_TextCategorizer
from thinc.api import Model, torch2xp
from torch import Tensor

from ...core.errors import ParamError
from ...core.types import Key

# A node, and a name of one of its params.
Slot = tuple[Model[Any, Any], str]
# Classes, and not what is derived from them: an update of its own may mix examples.
SEPARABLE = (
    *(EditTreeLemmatizer, Morphologizer, MultiLabel_TextCategorizer, SentenceRecognizer, Tagger, TextCategorizer),
    Tok2Vec,
)
_TRANSITION_BASED = (
    "its gradient for missing features comes from the last token of the batch (thinc's precomputable_affine), and it "
    "drops units at random also with a dropout of 0, so that the parts of a batch are not those of its examples"
)


def models_of(nlp: Language, exclude: Collection[str] = ()) -> list[Model[Any, Any]]:
    """The models of the trained components.

    RAISES (ParamError): A component mixes the examples of a batch, or may do so.
    """
    found = []
    for name, proc in nlp.pipeline:
        model = getattr(proc, "model", None)
        if name in exclude or not isinstance(model, Model) or not getattr(proc, "is_trainable", False):
            continue
        if type(proc) not in SEPARABLE:
            is_known = isinstance(proc, (DependencyParser, EntityRecognizer))
            reason = _TRANSITION_BASED if is_known else "nothing is known about how its update treats a batch"
            raise ParamError(
                f"Can't clip the gradient of each example for component '{name}' ({type(proc).__name__}): {reason}. "
                "Freeze it (frozen_components), or train it without privacy."
            )
        found.append(model)
    return found


def add_grad(slot: Slot, values: Tensor) -> None:
    """Add to a gradient. values (Tensor): As many numbers as the param has, in its order."""
    node, name = slot
    node.inc_grad(name, torch2xp(values.reshape(node.get_param(name).shape)))  # type: ignore[arg-type]


def slots_of(nlp: Language, exclude: Collection[str], frozen: Collection[Key]) -> Iterator[Slot]:
    """All params that are trained, each once."""
    seen: set[Key] = set(frozen)
    for model in models_of(nlp, exclude):
        for node in model.walk():
            for name in node.param_names:
                if node.has_param(name) and (node.id, name) not in seen:
                    seen.add((node.id, name))
                    yield node, name
