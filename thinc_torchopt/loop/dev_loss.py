"""The loss on the development data, which spaCy does not compute: a backward pass without dropout and without an
update.

It uses the weights that are evaluated (averages, if there are some), in float32. Afterwards gradients, random
generators, buffers of torch modules, gradient scalers, attrs of layers and labels are as before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy, deepcopy
from functools import partial
from itertools import islice
from typing import Any

import numpy
import torch
from spacy.language import Language
from spacy.pipeline import EditTreeLemmatizer, EntityRecognizer, SpanCategorizer, Tagger
from spacy.tokens import Doc
from spacy.training import Example
from spacy.training.batchers import minibatch_by_words
from spacy.util import resolve_dot_names
from thinc.api import Model, PyTorchShim
from torch.nn.parameter import is_lazy

from ..core.errors import ControllerError
from ..core.host import Dropout, buffers_of, components_of, module_of, put_buffer_back, scaler_of, swap_grads
from ..core.optimizer import TorchOptimizer
from ..core.params import components_with_model, computing_all_in, torch_params, trainable_components, unescape
from .components import is_trained
from .model_state import is_plain, on_cpu, same_values
from .random_state import preserved_random

# Words of a batch. Gradients are dropped, so its size only affects memory.
_WORDS = 2000


class DevLosses:
    """Computes the losses of a run on its development data.

    nlp (Language), optimizer (TorchOptimizer), exclude, annotates (Collection[str]): The run's.
    examples (Sequence[Example] | None): What to compute them on. None: the config's development data.
    averaged (bool): With averaged params, if there are some.
    RAISES (ControllerError): The config has no development data.
    """

    def __init__(
        self,
        nlp: Language,
        optimizer: TorchOptimizer,
        exclude: Collection[str],
        annotates: Collection[str],
        *,
        examples: Sequence[Example] | None = None,
        averaged: bool = True,
    ):
        self._nlp = nlp
        self._optimizer = optimizer
        self._exclude = exclude
        self._annotates = annotates
        self._averaged = averaged
        if examples is not None:
            self._corpus: Callable[[Language], Iterable[Example]] = lambda nlp: examples
            return
        config = nlp.config.interpolate()
        try:
            with preserved_random():
                [self._corpus] = resolve_dot_names(config, [config["training"]["dev_corpus"]])
        except Exception as error:
            raise self._no_data(f"{type(error).__name__}: {error}") from error

    def __call__(self, at_most: int | None = None) -> dict[str, Any]:
        """Compute `losses` by component, and the number of `words` and `examples` that were used.

        at_most (int | None): Use only the first examples, up to this many.
        RAISES (ControllerError): There is no example.
        """
        losses: dict[str, Any] = {}
        words = examples = 0
        nlp, optimizer = self._nlp, self._optimizer
        averages = optimizer.averages if self._averaged else {}
        with nlp.use_params(averages), untouched(nlp), optimizer.training(), computing_all_in("float32"):
            # Components may draw random numbers even without dropout: draw the same each time.
            random.seed(0)
            numpy.random.seed(0)
            torch.manual_seed(0)
            read = self._known(islice(self._read(), at_most))
            with _hiding_unknown_entities(nlp, self._trained) as hiding:
                for batch in minibatch_by_words(read, _WORDS, discard_oversize=False):
                    words, examples = words + sum(map(len, batch)), examples + len(batch)
                    for name, loss in self._losses_of(batch, hiding).items():
                        losses[name] = losses.get(name, 0.0) + float(loss)
        if not examples:
            raise self._no_data("none")
        return {"losses": losses, "words": words, "examples": examples}

    def _read(self) -> Iterable[Example]:
        try:
            yield from self._corpus(self._nlp)
        except (OSError, ValueError) as error:
            raise self._no_data(f"{type(error).__name__}: {error}") from error

    def _known(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Copies without labels that a trained component has not seen in the training data, as if they were missing:
        spaCy would add entities to the NER in training, and has no loss for tags and spans. Its other components leave
        out unknown labels themselves.
        """
        known = [(pipe, frozenset(getattr(pipe, "labels", ()))) for pipe in self._trained.values()]
        for example in examples:
            predicted, reference = example.predicted.copy(), example.reference.copy()
            for pipe, labels in known:
                if isinstance(pipe, EntityRecognizer):
                    _hide_unknown_entities(labels, reference)
                elif isinstance(pipe, SpanCategorizer):
                    spans = reference.spans.get(pipe.key, ())
                    reference.spans[pipe.key] = [span for span in spans if span.label_ in labels]
                elif getattr(type(pipe), "get_loss", None) is Tagger.get_loss:
                    for token in reference:
                        if token.tag_.removeprefix(pipe.cfg["neg_prefix"]) not in labels:
                            token.tag = 0
            yield Example(predicted, reference)

    @property
    def _trained(self) -> dict[str, Any]:
        return {name: pipe for name, pipe in self._nlp.pipeline if name not in self._exclude and is_trained(pipe)}

    def _losses_of(self, batch: list[Example], hiding: list[str]) -> dict[str, Any]:
        losses: dict[str, Any] = {}
        try:
            self._nlp.update(
                batch,
                drop=0.0,
                losses=losses,
                sgd=False,  # type: ignore[arg-type]
                exclude=self._exclude,
                annotates=[*self._annotates, *hiding],
            )
        except ValueError as error:
            if not str(error).startswith("[E910]"):
                raise
            # spaCy stops at the first NaN, so the losses of later components are unknown.
            return {unescape(name): math.nan for name, _ in trainable_components(self._nlp, self._exclude)}
        return losses

    @staticmethod
    def _no_data(found: str) -> ControllerError:
        return ControllerError(
            f"Can't compute the metric EvalLoss: expected examples in [training] dev_corpus, found {found}."
        )


@contextmanager
def _hiding_unknown_entities(nlp: Language, trained: Mapping[str, Any]) -> Iterator[list[str]]:
    """Inside, a component before each trained NER hides entities that it does not know, those of a ruler too, as if
    they were missing. Gives the names of these components, which must annotate.
    """
    components, hiding = components_of(nlp), []
    before = [*components]
    for name, pipe in before:
        if name in trained and isinstance(pipe, EntityRecognizer):
            hiding.append(f"entities that '{name}' knows")
            hide = partial(_hide_unknown_entities, frozenset(pipe.labels))
            components.insert(components.index((name, pipe)), (hiding[-1], hide))
    try:
        yield hiding
    finally:
        components[:] = before


def _hide_unknown_entities(labels: Collection[str], doc: Doc) -> Doc:
    unknown = [ent for ent in doc.ents if ent.label_ not in labels]
    doc.set_ents([], missing=unknown, default="unmodified")
    return doc


@contextmanager
def untouched(nlp: Language) -> Iterator[None]:
    """Turn dropout off and allow gradients inside; restore everything afterwards."""
    with ExitStack() as restore:
        restore.enter_context(preserved_random())
        for _, pipe in nlp.pipeline:
            if isinstance(pipe, EditTreeLemmatizer):  # its loss adds the trees of all lemmas
                restore.callback(setattr, pipe, "trees", pipe.trees)
                pipe.trees = copy(pipe.trees)
        for _, model in components_with_model(nlp):
            for node in model.walk():
                _keep_node(node, restore)
                for shim in node.shims:
                    if isinstance(shim, PyTorchShim) and module_of(shim) is not None:
                        _keep_shim(shim, restore)
        yield


def _keep_node(node: Model[Any, Any], restore: ExitStack) -> None:
    # The very same arrays come back. Params without a gradient have none afterwards.
    restore.callback(swap_grads, node, swap_grads(node, {}))
    restore.callback(
        _put_attrs_back,
        node,
        deepcopy({key: value for key, value in node.attrs.items() if is_plain(value)}),
        set(node.attrs),
    )


def _put_attrs_back(node: Model[Any, Any], attrs: dict[str, Any], keys: set[str]) -> None:
    for key in node.attrs.keys() - keys:
        del node.attrs[key]
    for key, value in attrs.items():
        if key not in node.attrs or not same_values(on_cpu(node.attrs[key]), on_cpu(value)):
            node.attrs[key] = value


def _keep_shim(shim: PyTorchShim, restore: ExitStack) -> None:
    for _, param in torch_params(shim):
        restore.callback(setattr, param, "grad", param.grad)
        param.grad = None
    scaler = scaler_of(shim)
    restore.callback(vars(scaler).update, {key: _copy_of(value) for key, value in vars(scaler).items()})
    for module in module_of(shim).modules():
        restore.callback(setattr, module, "training", module.training)
        for name, buffer in buffers_of(module).items():
            if buffer is not None and not is_lazy(buffer):
                restore.callback(put_buffer_back, module, name, buffer, buffer.clone())
        # thinc's dropout rate does not reach torch's layers, nor the attention of Hugging Face's.
        rates = {name: value for name, value in vars(module).items() if isinstance(value, float) and "drop" in name}
        if isinstance(module, Dropout):
            rates["p"] = module.p
        for name, value in rates.items():
            restore.callback(setattr, module, name, value)
            setattr(module, name, 0.0)


def _copy_of(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
