"""The backward pass of spaCy's parser and NER in one piece.

The parser makes one transition of each text at a time. spaCy's backward pass multiplies, for each of these steps, two
small matrices with the weights of the layer below the transitions (`PrecomputableAffine`), and adds the result to a
gradient as large as the weights. `batched` collects the gradients of the steps, and calls the same backward function
once for many of them. Its sums have another order: results differ in rounding only.

On a GPU spaCy makes the steps on the host, and copies each step's mask and gradients to the device. Here they stay on
the host, and are copied once.

Forward passes stay spaCy's, and so do those of predictions and of other layers.

SOURCE: spacy/ml/tb_framework.py, `forward`; spacy/ml/_precomputable_affine.py, `forward`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import update_wrapper
from types import SimpleNamespace
from typing import Any

import numpy
from spacy.language import Language
from spacy.ml import tb_framework
from thinc.api import CupyOps, Model, NumpyOps

from .host import forward_of, forward_of_parsers_lower_layer, swap_forward
from .params import components_with_model

# States (a text before one of its transitions) whose gradients are computed at once: for each, the vectors of up to 13
# words are copied together, so this bounds the memory.
_STATES = 4096
_LOWER_FORWARD = forward_of_parsers_lower_layer()


class Batched:
    """The forward function of a parser's model, with its backward pass in one piece.

    Public: `is_on`. Where it is off, it is spaCy's function: for copies of the model that outlive the use of it. Its
    own copies and pickles are spaCy's function: the pipeline goes where this package may be missing.
    """

    def __init__(self) -> None:
        update_wrapper(self, tb_framework.forward)
        self.is_on = True

    def __call__(self, model: Model[Any, Any], X: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        tok2vec, lower, upper = model.layers
        is_theirs = forward_of(lower) is _LOWER_FORWARD and isinstance(lower.ops, (NumpyOps, CupyOps))
        if not (self.is_on and is_train and is_theirs):
            step: tuple[Any, Callable[..., Any]] = tb_framework.forward(model, X, is_train)
            return step
        collecting = _Collecting(lower)
        layers = [tok2vec, collecting, upper]
        step_model, _ = tb_framework.forward(SimpleNamespace(layers=layers, attrs=model.attrs), X, is_train)
        if isinstance(lower.ops, CupyOps):
            step_model.state2vec.ops = NumpyOps()

        def finish_steps(golds: Any) -> Any:
            words, width = step_model.tokvecs.shape
            # The last row is for words that a state lacks, whose id is -1.
            d_tokvecs = step_model.ops.alloc((words + 1, width))
            for ids, d_vector, backprop in step_model.backprops:
                backprop((d_vector, ids))
            for ids, d_features in collecting.backprop():
                step_model.ops.scatter_add(d_tokvecs, ids, d_features)
            step_model.bp_tokvecs(d_tokvecs[:-1])
            return d_tokvecs

        return step_model, finish_steps

    def end(self) -> None:
        self.is_on = False

    def __reduce__(self) -> Any:
        return copy.copy, (tb_framework.forward,)


class _Collecting:
    """Stands for a PrecomputableAffine: it computes the same, and keeps what comes back."""

    def __init__(self, lower: Model[Any, Any]):
        self._lower = lower
        self._backprop: Callable[..., Any] | None = None
        self._gradients: list[Any] = []
        self._ids: list[Any] = []

    def __call__(self, X: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        Y, self._backprop = self._lower(X, is_train)
        return Y, self._collect

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lower, name)

    def _collect(self, gradient_and_ids: tuple[Any, Any]) -> None:
        gradient, ids = gradient_and_ids
        self._gradients.append(gradient)
        self._ids.append(ids)

    def backprop(self) -> Any:
        """Compute the gradients of the weights. YIELDS: ids of words, and the gradients of their vectors."""
        if self._backprop is None or not self._ids:
            return
        ops: Any = self._lower.ops
        gradients, all_ids = ops.asarray(numpy.concatenate(self._gradients)), ops.asarray(numpy.concatenate(self._ids))
        self._gradients, self._ids = [], []
        for i in range(0, len(all_ids), _STATES):
            ids = all_ids[i : i + _STATES]
            d_features = self._backprop((gradients[i : i + _STATES], ids))
            yield ids.ravel(), d_features.reshape((ids.size, -1))


def batch_backprop(node: Model[Any, Any]) -> list[Callable[[], None]]:
    """Give a node the batched backward pass if it is a parser's. RETURNS: Put spaCy's back, see `swap`."""
    if forward_of(node) is not tb_framework.forward:
        return []
    batched = Batched()
    return [swap_forward(node, batched), batched.end]


def batch_backprop_on_gpu(nlp: Language) -> list[Callable[[], None]]:
    """The same for all nodes of a pipeline that are on a GPU."""
    nodes = [node for _, model in components_with_model(nlp) for node in model.walk()]
    return [put_back for node in nodes if isinstance(node.ops, CupyOps) for put_back in batch_backprop(node)]
