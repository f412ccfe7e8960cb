"""Batches of texts that a transformer reads with little padding: `thinc-torchopt.batch_by_padded_pieces.v1`.

A batch is padded to its longest row: a text, or a window of it. spaCy's `batch_by_padded` counts it in words, and a
text of few words may have many wordpieces. Here, the tokenizer of the pipeline's transformer counts, and a text of
several windows is several rows.

SOURCE: spacy/training/batchers.py (3.8), `minibatch_by_padded_size`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Optional
from weakref import WeakKeyDictionary

from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import minibatch, registry

from ...core.checks import Section
from ...core.errors import ConfigError
from .settings import FineTuning
from .transformers import ANY, Transformer, transformers_of
from .windows import PieceCounter, PieceWindows

_SECTION = Section("[training.batcher]")
# By transformer: checks before a training draw batches of the same texts.
_counters: WeakKeyDictionary[Any, dict[Any, RowCounter]] = WeakKeyDictionary()
# Wordpieces of a word, in English, where no tokenizer is at hand.
_PIECES_OF_WORD = 1.3


class Rows(NamedTuple):
    """The rows in which a transformer reads a text. longest (int): The wordpieces of the longest one."""

    number: int
    longest: int

    @property
    def padded(self) -> int:
        return self.number * self.longest


class RowCounter:
    """Counts the rows of texts. Each text is tokenized once.

    tokenizer (PreTrainedTokenizerBase | None): The model's. None: it is not there yet, so wordpieces are estimated.
    get_spans (Callable): Makes the windows. at_most (int): Wordpieces of a row: the model reads no more.
    """

    def __init__(self, tokenizer: Any, get_spans: Callable[[Sequence[Doc]], Any], at_most: int):
        self._count = _estimate if tokenizer is None else PieceCounter(tokenizer).of_spans
        self._get_spans = get_spans
        self._at_most = at_most
        self._known: WeakKeyDictionary[Doc, Rows] = WeakKeyDictionary()

    def __call__(self, docs: Sequence[Doc]) -> list[Rows]:
        new = [doc for doc in docs if doc not in self._known]
        spans = self._spans_of(new)
        lengths = iter(self._count([span for of_doc in spans for span in of_doc]))
        for doc, of_doc in zip(new, spans):
            of_rows = [min(next(lengths), self._at_most) for _ in of_doc]
            self._known[doc] = Rows(len(of_rows), max(of_rows, default=0))
        return [self._known[doc] for doc in docs]

    def _spans_of(self, docs: Sequence[Doc]) -> Sequence[Sequence[Span]]:
        try:
            return self._get_spans(docs)
        except ValueError as error:  # of spaCy, where texts have no sentences yet
            raise ConfigError(
                "Can't make batches by wordpieces: expected get_spans of the transformer to need nothing but texts, "
                f'found: {error} Use @span_getters = "spacy-transformers.strided_spans.v1", or @batchers = '
                '"spacy.batch_by_padded.v1".'
            ) from error


def _estimate(spans: Sequence[Span]) -> list[int]:
    return [round(_PIECES_OF_WORD * len(span)) + 2 for span in spans]


@dataclass(kw_only=True)
class PaddedPieces:
    """See `batch_by_padded_pieces`.

    count (Callable | None): Counts the rows of texts. None: the pipeline is not known yet.
    """

    size: int
    buffer: int
    discard_oversize: bool
    component: str | None
    count: Callable[[Sequence[Doc]], list[Rows]] | None = None

    def for_pipeline(self, nlp: Language) -> PaddedPieces:
        """The same, that counts as the transformer of a pipeline reads.

        RAISES (ConfigError): It has none, or several.
        """
        return replace(self, count=_counter_of(nlp, _transformer_of(nlp, self.component)))

    def __call__(self, items: Iterable[Example]) -> Iterator[list[Example]]:
        if self.count is None:
            raise ConfigError(
                "Can't make batches by wordpieces: expected the pipeline's transformer, which "
                "thinc-torchopt.TorchOptimizer.v1 finds in [training], found another training. Set @optimizers to it "
                'in [training.optimizer], or @batchers = "spacy.batch_by_padded.v1" here.'
            )
        return self._batches(items, self.count)

    def _batches(self, items: Iterable[Example], count: Callable[[Sequence[Doc]], list[Rows]]) -> Iterator[list[Any]]:
        for examples in minibatch(items, self.buffer):
            batches = self._split(count([example.predicted for example in examples]))
            random.shuffle(batches)
            for batch in batches:
                yield [examples[i] for i in sorted(batch)]

    def _split(self, rows: Sequence[Rows]) -> list[list[int]]:
        """Texts of similar length together: indices of texts."""
        batches: list[list[int]] = []
        number = 0
        for i in sorted(range(len(rows)), key=lambda i: rows[i].longest):
            if self.discard_oversize and rows[i].padded > self.size:
                continue
            number += rows[i].number
            if not batches or number * rows[i].longest > self.size:
                batches.append([])
                number = rows[i].number
            batches[-1].append(i)
        return batches


def batch_by_padded_pieces(
    size: int, buffer: int = 1024, discard_oversize: bool = False, component: Optional[str] = None
) -> PaddedPieces:
    """Batches of texts with similar numbers of wordpieces, so that a transformer reads little padding. Registered as
    `thinc-torchopt.batch_by_padded_pieces.v1`.

    As `spacy.batch_by_padded.v1`, but a text is as long as its longest row in wordpieces, a text of several windows is
    several rows, and the batches of a buffer come in random order. For components of spacy-transformers, in a training
    by `thinc-torchopt.TorchOptimizer.v1`.

    size (int): The most wordpieces of a batch, with padding: its rows times its longest row. A text that is larger is
        a batch of its own.
    buffer (int): The number of texts that are sorted at once. With more there is less padding.
    discard_oversize (bool): Leave out texts that are larger than a batch by themselves.
    component (str | None): The component with the transformer. None: there is but one.
    RETURNS (Callable): The batcher for [training.batcher].
    RAISES (ConfigError): An argument is out of its range.
    """
    if component is not None and not (isinstance(component, str) and component):
        _SECTION.refuse("component", "the name of a component, or null", component)
    return PaddedPieces(
        size=_SECTION.whole("size", size, at_least=1),
        buffer=_SECTION.whole("buffer", buffer, at_least=1),
        discard_oversize=_SECTION.flag("discard_oversize", discard_oversize),
        component=component,
    )


def _transformer_of(nlp: Language, component: str | None) -> Transformer:
    """RAISES (ConfigError): There is none, or several, or it is no component of spacy-transformers."""
    found = {one.component: one for one in transformers_of(nlp) if not one.is_curated}
    if not found:
        raise ConfigError(
            "Can't use thinc-torchopt.batch_by_padded_pieces.v1 in [training.batcher]: expected a component with a "
            f"transformer of spacy-transformers, found {', '.join(nlp.pipe_names) or 'no component'}. Use @batchers = "
            '"spacy.batch_by_padded.v1".'
        )
    name = next(iter(found)) if component is None and len(found) == 1 else component
    if name not in found:
        _SECTION.refuse("component", " or ".join(f"'{one}'" for one in found), name)
    return found[name]


def _counter_of(nlp: Language, transformer: Transformer) -> RowCounter:
    training, tokenizer = nlp.config.interpolate()["training"], _tokenizer_of(transformer)
    block = (training["optimizer"] or {}).get("fine_tuning")
    settings = registry.resolve({"fine_tuning": block})["fine_tuning"] if block else None
    window = stride = None
    # Frozen transformers keep their windows.
    if isinstance(settings, FineTuning) and transformer.component not in training["frozen_components"]:
        window, stride = settings.window_pieces, settings.stride
    get_spans = transformer.node.attrs["get_spans"]
    known, key = _counters.setdefault(transformer.node, {}), (tokenizer, get_spans, window, stride)
    if key not in known:
        at_most = int(getattr(tokenizer, "model_max_length", ANY))
        if window is not None and tokenizer is not None:
            get_spans, at_most = PieceWindows(tokenizer, window, stride or 0, tells=False), min(window, at_most)
        known[key] = RowCounter(tokenizer, get_spans, at_most)
    return known[key]


def _tokenizer_of(transformer: Transformer) -> Any:
    """Of a pipeline that is not initialized: from the files of its model. None: they are not on this machine."""
    if (tokenizer := transformer.tokenizer) is not None:
        return tokenizer
    from transformers import AutoTokenizer

    try:
        name = transformer.node.attrs["name"]
        return AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, ImportError):
        return None
