"""Where a gradient goes: a node and a name of thinc, or a param of torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Union

from spacy.language import Language
from thinc.api import Model, torch2xp
from torch import Tensor
from torch.nn import Parameter

from ..host import module_of
from ..types import Key
from .components import models_of

# Of thinc a node and a name, of torch the param itself.
Slot = Union[tuple[Model[Any, Any], str], Parameter]


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
