"""The transformers of a training: their windows, the text that these lose, and the memory of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import torch
from spacy.tokens import Doc

from ...core.words import count, size_in_words
from ...loop.data_check import Corpus
from ...loop.data_stream import batches_of
from ...loop.random_state import preserved_random
from ...loop.setup import Setup
from ..fine_tuning import (
    PieceCounter,
    PieceWindows,
    Transformer,
    count_lost,
    layers_of,
    split_by_length,
    transformers_of,
)
from .lines import Line

_FLOAT = 4
# Words of the texts that are tokenized, and batches that are looked at.
_WORDS, _BATCHES = 100_000, 200
_BLOCK = "[training.optimizer.fine_tuning]"


def tell_windows(setup: Setup, train: Corpus) -> tuple[list[Line], list[str]]:
    """Say which windows the transformers that are trained read, and what is lost of the training data.

    RETURNS (tuple): Lines, and notes on what is lost.
    """
    settings: Any = setup.optimizer.attachments.get("fine_tuning")
    window = None if settings is None else settings.window_pieces
    lines: list[Line] = []
    notes = []
    docs = _first(train)
    for one in transformers_of(setup.nlp, setup.frozen):
        text = f"'{one.component}' reads windows of {window} wordpieces, {settings and settings.stride} apart"
        lost = None if one.is_curated else count_lost(one, one.node.attrs["get_spans"], docs)
        if window is not None:
            text += (
                f", {settings.max_batch_pieces:,} wordpieces at once, and is saved with windows of words that lose none"
            )
            if lost is not None and lost.cut:
                text += f". With the windows of its own section, {lost}"
            lines.append(("Windows", f"{text}."))
        elif lost is not None and lost.cut:
            happens = "" if _cuts(one) else ": more are an error of torch"
            notes.append(
                f"{lost}. '{one.component}' reads at most {one.longest_input} at once{happens}. A block {_BLOCK} "
                'with @misc = "thinc-torchopt.FineTuning.v1" makes windows that lose none.'
            )
    return lines, notes


def tell_batch_memory(setup: Setup, train: Corpus) -> Iterator[str]:
    """Estimate the memory that the largest batch takes in each transformer that is trained."""
    for one in transformers_of(setup.nlp, setup.frozen):
        if not one.is_curated and (pieces := _largest_batch(setup, one, train)):
            again, layers = _layers_again(setup, one)
            told = f", with {again} of its {count(layers, 'layer')} computed again" if again else ""
            yield (
                f"The largest batch has {count(pieces, 'wordpiece')} in '{one.component}', with padding: about "
                f"{size_in_words(pieces * _bytes_per_piece(setup, one))} for its activations{told}, "
                "by a simple estimate."
            )


def _first(train: Corpus) -> list[Doc]:
    words, docs = 0, []
    for example in train.examples:
        if words >= _WORDS:
            break
        docs.append(example.predicted)
        words += len(example.predicted)
    return docs


def _cuts(transformer: Transformer) -> bool:
    """Whether what is too long is dropped. Otherwise it reaches torch, which has no positions for it."""
    return bool(transformer.tokenizer.model_max_length == transformer.longest_input)


def _largest_batch(setup: Setup, transformer: Transformer, train: Corpus) -> int:
    """The most wordpieces that are kept for a backward pass, with padding."""
    settings: Any = setup.optimizer.attachments.get("fine_tuning")
    get_spans: Callable[[Sequence[Doc]], Any] = transformer.node.attrs["get_spans"]
    if settings is not None and settings.window_pieces is not None:
        get_spans = PieceWindows(transformer.tokenizer, settings.window_pieces, settings.stride)
    pieces, longest = PieceCounter(transformer.tokenizer), transformer.longest_input or 10**9
    parts = max(1, setup.config["training"]["accumulate_gradient"])
    known: dict[int, list[int]] = {}
    most = 0
    with preserved_random():
        batches = batches_of(setup.nlp, setup.config, lambda nlp: iter(train.examples))
        first = takewhile(lambda found: found[0] == 0, batches)
        for _, (_, batch) in zip(range(_BATCHES), first):
            lengths: list[int] = []
            for example in batch:
                if (doc := example.predicted) and id(doc) not in known:
                    spans = get_spans([doc])[0]
                    known[id(doc)] = [min(length, longest) for length in pieces.of_spans(spans)]
                lengths += known.get(id(doc), [])
            padded = len(lengths) * max(lengths, default=0)
            if settings is not None:
                split = split_by_length(lengths, settings.max_batch_pieces)
                padded = sum(len(part) * lengths[part[0]] for part in split)
            most = max(most, padded // parts)
    return most


def _bytes_per_piece(setup: Setup, transformer: Transformer) -> float:
    """Bytes that torch keeps of a wordpiece for the backward pass: about the inputs and outputs of linear layers."""
    linear = [module for module in transformer.module.modules() if isinstance(module, torch.nn.Linear)]
    kept = float(sum(module.in_features + module.out_features for module in linear))
    again, layers = _layers_again(setup, transformer)
    if again:
        # A layer that is computed again has its values for a moment; the lowest do when those above are done.
        kept = kept / layers * max(1, layers - again) + again * float(transformer.node.get_dim("nO"))
    return _FLOAT * kept


def _layers_again(setup: Setup, transformer: Transformer) -> tuple[int, int]:
    """The number of layers that are computed again in the backward pass, and that of all."""
    settings: Any = setup.optimizer.attachments.get("fine_tuning")
    layers = len(layers_of(transformer.module))
    return 0 if settings is None else settings.layers_again(layers), layers
