"""One loss for all words of a batch.

spaCy's taggers compute their loss text by text: labels become rows of zeros and ones, which are checked, and each of
these checks and sums is a wait on a GPU. `update_of_words` takes the same differences for all words of a batch. Their
own `get_loss` tells once what a text teaches, which is kept as an id for each word.

Gradients are the same to the bit; losses too, but on a GPU, where the batch has one sum. Scores that are no numbers
are an error behind the backward pass.

SOURCE: spacy/pipeline/tagger.pyx (3.8), `Tagger.update`; thinc/loss.py (8.3), `SequenceCategoricalCrossentropy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy
from spacy.errors import Errors
from spacy.pipeline import EditTreeLemmatizer, Morphologizer, SentenceRecognizer, Tagger
from thinc.api import set_dropout_rate, to_categorical

from .truths import KeptExample

# As a score, it tells a label (a negative difference) from all others, and from a word without a label (none).
_PROBE = numpy.float32(0.123456789)


def _ids_of(pipe: Any, example: KeptExample) -> Any:
    """For each word the id of its label; -1: it has none. None: the loss is more than that, as with `neg_prefix`.

    Shape: (words,).
    """
    scores = numpy.full((len(example.x), len(pipe.labels)), _PROBE)
    _, [difference] = pipe.get_loss([example], [scores])
    ids = difference.argmin(axis=1)
    ids[~difference.any(axis=1)] = -1
    return ids.astype("i") if numpy.array_equal(_differences(pipe, scores, ids), difference) else None


def _differences(pipe: Any, scores: Any, ids: Any) -> Any:
    """From the labels. Shape: (words, labels). ids (ndarray): On the same device as `scores`."""
    # A word without a label is subtracted as one of the first label, by a lemmatizer as one of the last, and is masked.
    known = ids if isinstance(pipe, EditTreeLemmatizer) else ids.clip(0)
    smoothing = getattr(pipe, "cfg", {}).get("label_smoothing", 0.0)
    found = scores - to_categorical(known, scores.shape[1], label_smoothing=smoothing)
    found *= (ids >= 0).astype("f")[:, None]
    return found


def _update(
    pipe: Any, examples: Sequence[KeptExample], *, drop: float, sgd: None, losses: dict[str, float]
) -> dict[str, float]:
    docs, cfg = [example.x for example in examples], pipe.cfg
    version = hash((pipe.labels, cfg.get("label_smoothing"), cfg.get("neg_prefix")))
    key = pipe.name, version
    truths = [example.answer(key, partial(_ids_of, pipe, example)) for example in examples if len(example.x)]
    if len(truths) < len(docs) or any(ids is None for ids in truths):
        theirs: dict[str, float] = type(pipe).update(pipe, examples, drop=drop, losses=losses)
        return theirs
    losses.setdefault(pipe.name, 0.0)
    set_dropout_rate(pipe.model, drop)
    scores, backprop = pipe.model.begin_update(docs)
    if scores[0].shape[1] != len(pipe.labels):
        pipe.get_loss(examples, scores)  # raises thinc's error
    ops, ends = pipe.model.ops, numpy.cumsum([0, *map(len, docs)])
    guesses = ops.xp.concatenate(scores)
    gradient = _differences(pipe, guesses, ops.asarray(numpy.concatenate(truths)))
    squares = gradient**2
    backprop(ops.xp.split(gradient, ends[1:-1]))
    least = float(guesses.min())
    if math.isnan(least):
        raise ValueError(Errors.E940)
    if not 0 <= least <= float(guesses.max()) <= 1:
        pipe.get_loss(examples, scores)  # raises thinc's error
    loss: Any = 0.0
    for begin, end in pairwise(ends) if isinstance(squares, numpy.ndarray) else [(0, len(squares))]:
        loss += squares[begin:end].sum()
    losses[pipe.name] += float(loss)
    return losses


def update_of_words(pipe: Any) -> Callable[..., Any] | None:
    """The update of a tagger, morphologizer, senter or lemmatizer with kept examples. None: it is another component."""
    is_one = type(pipe) in (Tagger, Morphologizer, SentenceRecognizer, EditTreeLemmatizer)
    return partial(_update, pipe) if is_one and _is_spacys(pipe.update) and _is_spacys(pipe.get_loss) else None


def _is_spacys(method: Any) -> bool:
    """And not a wrapper of it, which has its name."""
    return bool(method.__module__.startswith("spacy.")) and not hasattr(method, "__wrapped__")
