"""The numbers of a component's forward and backward pass that tell how hard a text was.

Of taggers: the norm of the gradient at the component's input, token by token. Of parsers and NER: the error of the
worst step at each token; their gradients at the input say less. Of classifiers: the error of each label. Of components
that score spans: that of the worst span around each token. An error is the part of the score that was wrong, 0 to 1.

SOURCE: Paul et al. 2021, Deep Learning on a Data Diet (norms of gradients and of errors, as means over a training).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy
from spacy.tokens import Doc
from thinc.api import Model, get_array_module, to_numpy
from thinc.layers.chain import forward as chain_forward

from ...core.host import forward_of, swap_forward
from ...core.kinds import Categories, Entities, Kind, Spans, Trees

_OF_SCORES, _OF_STEPS = (Categories, Spans), (Entities, Trees)
# From this error on, something else was predicted.
_WRONG: Final = 0.5


@dataclass
class Signal:
    """The numbers of one pass, on its device: reading them here would wait for a GPU.

    docs (Sequence[Doc]): The texts.
    hardness (Any): Of tokens, shape (tokens,); of labels, shape (docs, labels); of spans, shape (spans,).
        NaN: the update did not reach it.
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
            worst = [_worst_around(len(doc), *part) for doc, part in zip(self.docs, parts)]
            yield from ((errors, errors < _WRONG) for errors in worst)
        elif hardness.ndim > 1:
            yield from zip(hardness, hardness < _WRONG)
        else:
            ends = numpy.cumsum([len(doc) for doc in self.docs])[:-1]
            yield from zip(numpy.split(hardness, ends), numpy.split(to_numpy(self.hits), ends))


def _worst_around(n: int, spans: Any, errors: Any) -> Any:
    """For each token the largest error of a span that it is in. Shape: (n,)."""
    worst = numpy.zeros(n, "f4")
    for i in range(int((spans[:, 1] - spans[:, 0]).max(initial=0))):
        has = spans[:, 0] + i < spans[:, 1]
        numpy.maximum.at(worst, spans[has, 0] + i, errors[has])
    return worst


def is_recorded(kind: Kind) -> bool:
    """Whether there is a signal for a kind of component."""
    return kind.is_of_each_word or (kind.has_labels and isinstance(kind, (*_OF_SCORES, *_OF_STEPS)))


@contextmanager
def listening(model: Model[Any, Any], kind: Kind, receive: Callable[[Signal], None]) -> Iterator[None]:
    """For the time of an update, send on what the passes of a component tell. No gradient changes.

    model (Model): The component's. receive (Callable): Gets a signal in each backward pass.
    """
    passes = _Passes(forward_of(model), receive)
    with ExitStack() as back:
        if isinstance(kind, _OF_SCORES):
            back.callback(swap_forward(model, passes.of_scores))
        elif isinstance(kind, _OF_STEPS):
            back.callback(swap_forward(model, passes.of_steps))
        else:
            tok2vec, layers = model.get_ref("tok2vec") if model.has_ref("tok2vec") else None, model.layers
            back.callback(swap_forward(model, passes.begin))
            if passes.forward is chain_forward and tok2vec in layers[:-1]:
                # Behind it: the layer of a transformer's head must stay as it is, see core/whole_batches.py.
                node, watched = layers[layers.index(tok2vec) + 1], passes.behind_input
            else:
                node, watched = model, passes.of_words
            passes.inner = forward_of(node)
            back.callback(swap_forward(node, watched))
        yield


class _Passes:
    """The forward functions that listen.

    Public: `forward` (of the whole model), `inner` (of the layer that is watched).
    """

    def __init__(self, forward: Callable[..., Any], receive: Callable[[Signal], None]):
        self.forward = self.inner = forward
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

    def of_steps(self, model: Model[Any, Any], X: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        """The same, of a model that goes through its texts step by step."""
        steps, finish = self.forward(model, X, is_train)
        if not is_train:
            return steps, finish
        forward, found = forward_of(steps), []

        def step(node: Model[Any, Any], states: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
            scores, backprop = forward(node, states, is_train)
            tokens = steps.get_token_ids(states)[:, 0]  # the next of each text that the step is about

            def listen(d_scores: Any) -> Any:
                found.append((tokens, to_numpy(d_scores).clip(0).sum(axis=1)))
                return backprop(d_scores)

            return scores, listen

        def finish_steps(golds: Any) -> Any:
            worst = numpy.full(sum(map(len, X)) + 1, numpy.nan, "f4")  # the last: of steps at the end of a text
            for tokens, errors in found:
                # No index is negative: with one, NumPy 1.25.0 and 1.25.1 write outside of the array.
                numpy.fmax.at(worst, tokens % len(worst), errors)
            self._receive(Signal(X, worst[:-1], worst[:-1] < _WRONG))
            return finish(golds)

        swap_forward(steps, step)  # for good: it lives for this update
        return steps, finish_steps

    def of_words(self, node: Model[Any, Any], X: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        """In place of a whole model whose input is unknown."""
        Y, backprop = self.inner(node, X, is_train)

        def listen(dY: Any) -> Any:
            self._receive(Signal(self._docs, _norms(dY), _hits(Y, dY)))
            return backprop(dY)

        return Y, listen if is_train else backprop

    def behind_input(self, node: Model[Any, Any], X: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        """In place of the layer behind it."""
        Y, backprop = self.inner(node, X, is_train)

        def listen(dY: Any) -> Any:
            dX = backprop(dY)
            self._receive(Signal(self._docs, _norms(dX), _hits(Y, dY)))
            return dX

        return Y, listen if is_train else backprop


def _hits(scores: Any, errors: Any) -> Any:
    """Whether each row has the highest score for its annotation: an error is a score, less 1 for what is annotated."""
    scores, errors = _joined(scores), _joined(errors)
    return (scores.argmax(axis=1) == errors.argmin(axis=1)) & errors.any(axis=1)


def _norms(gradient: Any) -> Any:
    """Of each row."""
    rows = _joined(gradient)
    return get_array_module(rows).linalg.norm(rows, axis=1)


def _joined(rows: Any) -> Any:
    """One array, of an array, a Ragged, or an array for each text."""
    if isinstance(rows, list):
        return get_array_module(rows[0]).concatenate(rows)
    return getattr(rows, "dataXd", rows)
