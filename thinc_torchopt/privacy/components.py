"""Components whose update of a batch is the sum of the updates of its examples."""

from __future__ import annotations

from collections.abc import Collection
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
from thinc.api import Model

from ..errors import ParamError

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
