"""The numbers of a component's forward and backward pass that tell how hard a text was.

Of a component that learns of each token: the norm of the gradient at its input, token by token. Of a classifier: the
distance of each score from its annotation. Of one that scores spans: that of the worst span around each token.

SOURCE: Paul et al. 2021, Deep Learning on a Data Diet (norms of gradients and of errors).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
from spacy.tokens import Doc
from thinc.api import Model, get_array_module, to_numpy
from thinc.layers.chain import forward as chain_forward

from ...core.host import forward_of, swap_forward
from ...core.kinds import Categories, Entities, Kind, Spans, Trees

_OF_SCORES = Categories, Spans


@dataclass
class Signal:
    """What one pass told, on its device: reading it here would wait for a GPU.

    docs (Sequence[Doc]): The texts.
    hardness (Any): Of tokens, shape (tokens,); of labels, shape (docs, labels); of spans, shape (spans,).
    hits (Any | None): Of tokens, whether the annotation was predicted.
    spans (Any | None): Where each span begins and ends. Shape: (spans, 2). lengths (Any | None): Spans of each text.
    """

    docs: Sequence[Doc]
    hardness: Any
    hits: Any = None
    spans: Any = None
    lengths: Any = None

    def by_text(self) -> Iterator[tuple[Any, Any]]:
        """The hardness of the units of each text, and the hits. Waits for a GPU."""
        hardness = to_numpy(self.hardness)
        if self.spans is not None:
            ends = to_numpy(self.lengths).cumsum()[:-1]
            parts = zip(numpy.split(to_numpy(self.spans), ends), numpy.split(hardness, ends))
            yield from ((_worst_around(len(doc), *part), None) for doc, part in zip(self.docs, parts))
        elif hardness.ndim > 1:
            yield from ((of_text, None) for of_text in hardness)
        else:
            ends = numpy.cumsum([len(doc) for doc in self.docs])[:-1]
            hits = [None] * len(self.docs) if self.hits is None else numpy.split(to_numpy(self.hits), ends)
            yield from zip(numpy.split(hardness, ends), hits)


def _worst_around(n: int, spans: Any, errors: Any) -> Any:
    """For each token the largest error of a span that it is in. Shape: (n,)."""
    worst = numpy.zeros(n, "f4")
    for i in range(int((spans[:, 1] - spans[:, 0]).max(initial=0))):
        has = spans[:, 0] + i < spans[:, 1]
        numpy.maximum.at(worst, spans[has, 0] + i, errors[has])
    return worst


def is_recorded(kind: Kind) -> bool:
    """Whether there is a signal for a kind of component."""
    return (
        kind.is_of_each_word
        or isinstance(kind, (Entities, Categories))
        or (kind.has_labels and isinstance(kind, Spans))
    )


@contextmanager
def listening(model: Model[Any, Any], kind: Kind, receive: Callable[[Signal], None]) -> Iterator[None]:
    """For the time of an update, send on what the passes of a component tell. No gradient changes.

    model (Model): The component's. receive (Callable): Gets a signal in each backward pass.
    """
    passes = _Passes(forward_of(model), receive)
    with ExitStack() as back:
        if isinstance(kind, _OF_SCORES):
            back.callback(swap_forward(model, passes.of_scores))
        else:
            node, watched = _input_of(model, passes, kind)
            back.callback(swap_forward(model, passes.begin))
            passes.inner = forward_of(node)
            back.callback(swap_forward(node, watched))
        yield


def _input_of(model: Model[Any, Any], passes: _Passes, kind: Kind) -> tuple[Model[Any, Any], Callable[..., Any]]:
    """The layer that is watched, and the function in its place."""
    tok2vec = model.get_ref("tok2vec") if model.has_ref("tok2vec") else model
    layers = model.layers
    if forward_of(model) is chain_forward and tok2vec in layers[:-1]:
        # The layer of a transformer's head itself must stay as it is: see core/whole_batches.py.
        behind = layers[layers.index(tok2vec) + 1]
        passes.tells_hits = behind is layers[-1] and not isinstance(kind, Trees)
        return behind, passes.behind_input
    return tok2vec, passes.input


class _Passes:
    """The forward functions that listen.

    Public: `forward` (of the whole model), `inner` (of the layer that is watched), `tells_hits` (its output are the
    scores of labels).
    """

    def __init__(self, forward: Callable[..., Any], receive: Callable[[Signal], None]):
        self.forward = self.inner = forward
        self.tells_hits = False
        self._receive = receive
        self._docs: Sequence[Doc] = ()

    def begin(self, model: Model[Any, Any], X: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        """In place of the whole model: note its texts."""
        self._docs = X
        passed: tuple[Any, Callable[..., Any]] = self.forward(model, X, is_train)
        return passed

    def of_scores(self, model: Model[Any, Any], X: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        """In place of the whole model of which the scores are watched: of texts, or of spans."""
        Y, backprop = self.forward(model, X, is_train)
        docs, spans = X if isinstance(X, tuple) else (X, None)

        def listen(dY: Any) -> Any:
            errors = abs(dY)
            if spans is None:
                self._receive(Signal(docs, errors))
            else:
                self._receive(Signal(docs, errors.max(axis=1), spans=spans.dataXd, lengths=spans.lengths))
            return backprop(dY)

        return Y, listen if is_train else backprop

    def input(self, node: Model[Any, Any], X: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        """In place of the layer whose output is the component's input."""
        Y, backprop = self.inner(node, X, is_train)

        def listen(dY: Any) -> Any:
            self._receive(Signal(self._docs, _norms(dY)))
            return backprop(dY)

        return Y, listen if is_train else backprop

    def behind_input(self, node: Model[Any, Any], X: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        """In place of the layer behind it."""
        Y, backprop = self.inner(node, X, is_train)

        def listen(dY: Any) -> Any:
            dX, hits = backprop(dY), None
            if self.tells_hits:
                errors = _joined(dY)
                # An error is a score, less 1 for the label that is annotated.
                hits = (_joined(Y).argmax(axis=1) == errors.argmin(axis=1)) & errors.any(axis=1)
            self._receive(Signal(self._docs, _norms(dX), hits))
            return dX

        return Y, listen if is_train else backprop


def _norms(gradient: Any) -> Any:
    """Of each row."""
    rows = _joined(gradient)
    return get_array_module(rows).linalg.norm(rows, axis=1)


def _joined(rows: Any) -> Any:
    """One array of what a layer has for a batch: an array, a Ragged, or an array for each text."""
    if isinstance(rows, list):
        return get_array_module(rows[0]).concatenate(rows) if rows else numpy.zeros((0, 0), "f4")
    return getattr(rows, "dataXd", rows)
