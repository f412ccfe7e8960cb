"""The backward pass of a batch, in which a text teaches only the components whose annotations it has; and how to undo
it, as far as one can: up to the update itself, which changes the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from spacy.language import Language
from spacy.training import Example
from thinc.api import Model

from ...core.host import swap_grads
from ...core.kinds import kind_in
from ...core.params import components_with_model, shim_paths, torch_params
from ...core.update import KeptBuffers
from ...loop.model_state import is_plain
from ...loop.random_state import read_random, set_random


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
    return copy.deepcopy(value) if is_plain(value) else value


def backward(
    nlp: Language, examples: Sequence[Example], *, exclude: Sequence[str], **arguments: Any
) -> dict[str, float]:
    """Compute gradients, as `Language.update` does. But components to which a text without annotations is one in which
    there is nothing learn only from texts that have some.

    exclude (Sequence[str]): Components that are not trained. arguments: Others of `Language.update`.
    RETURNS (dict): The losses.
    """
    groups: dict[tuple[str, ...], list[Example]] = {}
    for example in examples:
        kinds = ((name, kind_in(nlp, name)) for name in nlp.pipe_names)
        without = (name for name, kind in kinds if kind.is_nothing_without and not kind.has(example.reference))
        groups.setdefault(tuple(without), []).append(example)
    losses: dict[str, float] = {}
    for left_out, group in groups.items():
        with _not_listening(nlp, left_out):
            nlp.update(group, exclude=[*exclude, *left_out], losses=losses, sgd=False, **arguments)  # type: ignore[arg-type]
    return losses


@contextmanager
def _not_listening(nlp: Language, components: Sequence[str]) -> Iterator[None]:
    """Inside, components don't listen to others.

    SOURCE: `update` in spacy/pipeline/tok2vec.py: the last listener starts the backward pass of the layers that all of
    them hear. If that one is not updated, these learn nothing. The same in spacy-transformers.
    """
    heard: list[Any] = [pipe for _, pipe in nlp.pipeline if hasattr(pipe, "listener_map")]
    kept = [pipe.listener_map for pipe in heard]
    for pipe in heard:
        pipe.listener_map = {name: found for name, found in pipe.listener_map.items() if name not in components}
    try:
        yield
    finally:
        for pipe, listeners in zip(heard, kept):
            pipe.listener_map = listeners
