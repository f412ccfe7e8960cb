"""The saved pipeline is an ordinary one: its transformer has windows of words again.

Those are `spacy-transformers.strided_spans.v1`, with the largest window of words that loses no wordpiece of the texts
in the training and development data, and no more words than a window of the training could have.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.training.loop import create_evaluation_callback
from spacy.util import registry, resolve_dot_names

from ...loop.random_state import preserved_random
from .transformers import Transformer
from .windows import PieceCounter, count_lost

SPANS = "spacy-transformers.strided_spans.v1"


def strided_spans(window: int, stride: int) -> Any:
    """The span getter of spacy-transformers that the saved pipeline has. window, stride (int): In words."""
    return registry.resolve({"spans": {"@span_getters": SPANS, "window": window, "stride": stride}})["spans"]


def windows_of_words(transformer: Transformer, docs: Sequence[Doc], *, at_most: int, overlap: float) -> tuple[int, int]:
    """The largest window of words that loses no wordpiece, and its stride.

    docs (Sequence[Doc]): The texts. Tokens that are longer than the model can read alone are left out.
    at_most (int): The most words. overlap (float): The part of a window that the next one has too.
    """
    pieces = PieceCounter(transformer.tokenizer)
    longest = transformer.longest_input
    words, room, whole = at_most, 0 if longest is None else longest - pieces.special, []
    for doc in docs if room else ():
        counts = pieces.of_tokens(doc)
        words = min(words, _largest(counts, room, words))
        if max(counts, default=0) <= room:
            whole.append(doc)
    while True:
        found = words, max(1, words - round(overlap * words))
        # Once more as the model reads them: before, each token was taken alone.
        if words == 1 or not count_lost(transformer, strided_spans(*found), whole).lost:
            return found
        words -= max(1, words // 50)


def _largest(pieces: Sequence[int], room: int, at_most: int) -> int:
    """The largest number of tokens that have room together wherever they begin, up to a number.

    pieces (Sequence[int]): Of each token. Those that have no room alone count as none.
    """
    before = [0, *accumulate(count if count <= room else 0 for count in pieces)]
    for start in range(len(pieces)):
        end = bisect_right(before, before[start] + room) - 1
        if end == len(pieces):
            break
        at_most = min(at_most, end - start)
    return max(1, at_most)


def blocks_with(key: str, config: Mapping[str, Any]) -> Iterator[Any]:
    """The blocks of a component's config that have a key, as `get_spans` or `with_spans`."""
    for name, block in config.items():
        if isinstance(block, Mapping):
            if name == key:
                yield block
            yield from blocks_with(key, block)


def read_dev(nlp: Language) -> list[Example]:
    """The development data of a training."""
    config = nlp.config.interpolate()
    with preserved_random():
        [corpus] = resolve_dot_names(config, [config["training"]["dev_corpus"]])
        return list(corpus(nlp))


def score_of_saved(folder: Path, nlp: Language) -> float:
    """Load a saved pipeline as anyone would, and score it on the development data.

    nlp (Language): The pipeline that was trained.
    """
    config = nlp.config.interpolate()
    with preserved_random():
        saved = spacy.load(folder)
        weights = config["training"]["score_weights"]
        score, _ = create_evaluation_callback(saved, read_dev, weights)()
    return float(score)
