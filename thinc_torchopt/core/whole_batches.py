"""The output of a transformer, read by its heads for a batch as a whole.

spacy-transformers cuts the output of a batch into a part for each text. Each head gathers the wordpieces of each part,
joins them, and cuts the gradients again: on a GPU, each of these is a launch, and each text a wait. For the time of an
update, `whole_batches` lets heads gather all wordpieces at once, and add up their gradients at once: the same to the
bit. Losses too, but for the transformer's own on a GPU: one sum, which is read when all heads are done.

All is spacy-transformers' where a head reads more than pooled vectors, a layer is not theirs, or a text has no token, a
token outside of all spans at its ends, or no wordpiece.

SOURCE: spacy_transformers/pipeline_component.py (1.4.0), `Transformer.update`; layers/listener.py, `forward`;
    layers/trfs2arrays.py, `forward`; align.pyx, `apply_alignment`; data_classes.py, `split_by_doc`, `unsplit_by_doc`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Model, set_dropout_rate, torch2xp, xp2torch
from thinc.layers.chain import forward as chain_forward
from thinc.types import Ragged

from .host import forward_of, swap, swap_forward
from .params import components_with_model


@dataclass(frozen=True)
class _Batch:
    """The output of a transformer.

    docs (list): The texts.
    hidden (ndarray): Vectors of wordpieces. Shape: (rows, wordpieces, width).
    pairs, counts (ndarray): The place of each wordpiece of each token, and their number by token.
    ends (ndarray): The first token of each text but the first.
    receive (Callable): Takes a gradient of `hidden`, and whether it is the last one.
    """

    docs: list[Doc]
    hidden: Any
    pairs: Any
    counts: Any
    ends: Any
    receive: Callable[[Any, bool], None]


class _Head:
    """The forward function of a listener and the layer that pools its wordpieces.

    is_last (bool): Of all listeners: it starts the transformer's backward pass.
    """

    def __init__(self, model: Model[Any, Any], is_last: bool):
        self.model = model
        self._is_last = is_last
        self.batch: _Batch | None = None

    def __call__(self, model: Any, docs: Sequence[Doc], is_train: bool) -> tuple[Any, Callable[..., Any]]:
        batch, (listener, arrays) = self.batch, model.layers
        if batch is None or not is_train:
            theirs: tuple[Any, Callable[..., Any]] = chain_forward(model, docs, is_train)
            return theirs
        if len(docs) != len(batch.docs) or any(one is not other for one, other in zip(docs, batch.docs)):
            raise ValueError(f"Mismatched texts: {listener.name!r} got others than its transformer.")
        ops, vectors = arrays.ops, batch.hidden.reshape((-1, batch.hidden.shape[-1]))
        Y, backprop_pooling = arrays.layers[0](Ragged(vectors[batch.pairs], batch.counts), is_train)

        def backprop(d_outputs: Sequence[Any]) -> Sequence[Doc]:
            if self.batch is batch:
                d_vectors = ops.alloc2f(*vectors.shape)
                ops.scatter_add(d_vectors, batch.pairs, backprop_pooling(ops.xp.concatenate(d_outputs)).dataXd)
                d_vectors *= arrays.attrs["grad_factor"]
                self.batch = None
                batch.receive(d_vectors.reshape(batch.hidden.shape), self._is_last)
            return docs

        return ops.xp.split(Y, batch.ends), backprop


class _Whole:
    """One update of a transformer. heads (list): Of all its listeners."""

    def __init__(self, transformer: Any, heads: Sequence[_Head]):
        self._transformer = transformer
        self._heads = heads
        self._sums: list[Any] = []
        self._losses: dict[str, float] = {}

    def update(self, examples: Sequence[Example], *, drop: float, sgd: None, losses: dict[str, float]) -> Any:
        model, name = self._transformer.model, self._transformer.name
        theirs = partial(type(self._transformer).update, self._transformer, examples, drop=drop, losses=losses)
        docs = [example.predicted for example in examples]
        if not all(map(len, docs)):
            return theirs()
        set_dropout_rate(model, drop)
        full, backprop = model.begin_update(docs)
        tokens = numpy.cumsum([0, *map(len, docs)])
        if not _is_covered(full, docs, tokens):
            with ExitStack() as back:
                back.callback(swap_forward(model, lambda *_, **__: (full, backprop)))
                return theirs()
        losses.setdefault(name, 0.0)
        rows, total = numpy.cumsum([0, *map(len, full.spans)]), None

        def receive(gradient: Any, is_last: bool) -> None:
            nonlocal total
            squares = gradient**2
            bounds = pairwise(rows) if isinstance(squares, numpy.ndarray) else [(0, len(squares))]
            self._sums += [squares[begin:end].sum() for begin, end in bounds]
            if total is None:
                total = gradient
            else:
                total += gradient
            if is_last:
                backprop(type(full)(full.spans, full.wordpieces, _output(total), full.align))

        self._losses, ops = losses, model.ops
        batch = _Batch(
            docs,
            torch2xp(full.model_output.last_hidden_state),
            ops.asarray(full.align.dataXd),
            ops.asarray(full.align.lengths),
            tokens[1:-1],
            receive,
        )
        for head in self._heads:
            head.batch = batch
        return losses

    def end(self) -> None:
        """Add to the losses: nothing has waited for a GPU before."""
        for one in self._sums:
            self._losses[self._transformer.name] += float(one)


def _output(gradient: Any) -> Any:
    from transformers.file_utils import ModelOutput

    return ModelOutput(output_0=xp2torch(gradient))


def _is_covered(full: Any, docs: Sequence[Doc], tokens: Any) -> bool:
    """Whether each text has wordpieces, and spans from its first token to its last. tokens: The first of each text."""
    counts = full.align.lengths
    ends = (
        (spans[0].start, spans[-1].end) == (0, len(doc)) if spans else False for spans, doc in zip(full.spans, docs)
    )
    return len(counts) == tokens[-1] and all(ends) and bool(numpy.add.reduceat(counts, tokens[:-1]).all())


@contextmanager
def whole_batches(nlp: Language) -> Iterator[None]:
    """Let the heads of transformers read batches as a whole, for one update of all of them."""
    with ExitStack() as back:
        found = [_Whole(pipe, heads) for pipe, heads in _transformers(nlp)]
        for one in found:
            back.callback(swap(one._transformer, "update", one.update))
            for head in one._heads:
                back.callback(swap_forward(head.model, head))
        yield
        for one in found:
            one.end()


def _transformers(nlp: Language) -> Iterator[tuple[Any, list[_Head]]]:
    """The transformers whose heads all read pooled vectors, with these."""
    if "spacy_transformers.pipeline_component" not in sys.modules:
        return
    from spacy_transformers.layers.listener import forward as listener_forward
    from spacy_transformers.layers.trfs2arrays import forward as arrays_forward
    from spacy_transformers.pipeline_component import Transformer

    if Transformer.update.__module__ != Transformer.__module__:
        return
    pipes: list[Any] = [pipe for _, pipe in nlp.pipeline if type(pipe) is Transformer]
    listeners = {pipe: pipe.listeners for pipe in pipes}
    known: dict[int, Model[Any, Any]] = {}
    for node in (node for _, model in components_with_model(nlp) for node in model.walk() if listeners):
        if forward_of(node) is chain_forward and list(map(forward_of, node.layers)) == [
            listener_forward,
            arrays_forward,
        ]:
            known[id(node.layers[0])] = node
    n_heard = Counter(id(one) for found in listeners.values() for one in found)
    for pipe, found in listeners.items():
        if all(id(one) in known and n_heard[id(one)] == 1 for one in found):
            yield pipe, [_Head(known[id(one)], one is found[-1]) for one in found]
