"""Undo a forward and backward pass, as far as one can: up to the update itself, which changes the weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy
from spacy.language import Language
from thinc.api import Model

from ...core.host import swap_grads
from ...core.params import components_with_model, shim_paths, torch_params
from ...core.update import KeptBuffers
from ...loop.model_state import is_plain
from ...loop.random_state import read_random, set_random

_CHANGES = (set, list, dict, numpy.ndarray)


class Undo:
    """Puts a pipeline back to where it was before a batch whose update failed: random generators, gradients, buffers of
    torch modules, and attrs of layers.

    nlp (Language): Between two updates: no gradient waits.
    """

    def __init__(self, nlp: Language):
        self._nlp = nlp
        self._buffers = KeptBuffers()

    def keep(self) -> None:
        """Keep all this before a batch."""
        self._random = read_random()
        self._models = components_with_model(self._nlp)
        self._buffers.keep(shim for name, model in self._models for _, shim in shim_paths(model, name))
        self._nodes = [(node, _grads_of(node), _attrs_of(node)) for _, model in self._models for node in model.walk()]

    def undo(self) -> None:
        """Put it back. The weights stay as they are."""
        set_random(self._random)
        shims = [shim for name, model in self._models for _, shim in shim_paths(model, name)]
        self._buffers.put_back(shims)
        for shim in shims:
            for _, param in torch_params(shim):
                param.grad = None
        for node, grads, attrs in self._nodes:
            swap_grads(node, dict(grads))
            for grad in grads.values():
                grad[...] = 0
            node.attrs.clear()
            node.attrs.update({key: _own(value) for key, value in attrs.items()})


def _grads_of(node: Model) -> dict[Any, Any]:
    """The gradients of a node by key: the dict is a copy."""
    swap_grads(node, grads := swap_grads(node, {}))
    return dict(grads)


def _attrs_of(node: Model) -> dict[str, Any]:
    return {key: _own(value) for key, value in node.attrs.items()}


def _own(value: Any) -> Any:
    """A value that nobody else changes."""
    return copy.deepcopy(value) if isinstance(value, _CHANGES) and is_plain(value) else value
