"""The params that are trained, and where a gradient goes: a node and a name of thinc, or a param of torch.

Components are those whose update of a batch is the sum of the updates of its examples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Union

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
from torch.nn import Parameter

from ...core.errors import ParamError
from ...core.host import module_of
from ...core.types import Key

# Of thinc a node and a name, of torch the param itself.
Slot = Union[tuple[Model[Any, Any], str], Parameter]
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
    if isinstance(slot, Parameter):
        values = values.reshape(slot.shape).to(slot.dtype)
        slot.grad = values if slot.grad is None else slot.grad.add_(values)
    else:
        node, name = slot
        node.inc_grad(name, torch2xp(values.reshape(node.get_param(name).shape)))  # type: ignore[arg-type]


def grad_of(slot: Slot) -> Any:
    """The gradient, an array or tensor to be changed in place. None: there is none."""
    if isinstance(slot, Parameter):
        return slot.grad
    node, name = slot
    return node.get_grad(name) if node.has_grad(name) else None


def slots_of(nlp: Language, exclude: Collection[str], frozen: Collection[Key]) -> Iterator[Slot]:
    """All params that are trained, each once."""
    seen: set[Any] = set(frozen)
    for model in models_of(nlp, exclude):
        for node in model.walk():
            for name in node.param_names:
                if node.has_param(name) and (node.id, name) not in seen:
                    seen.add((node.id, name))
                    yield node, name
            for shim in node.shims:
                for param in module_of(shim).parameters():
                    if param.requires_grad and id(param) not in seen:
                        seen.add(id(param))
                        yield param
