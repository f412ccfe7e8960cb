"""The wordpieces of texts and their alignment with spaCy's tokens, kept for the time of a run.

spacy-transformers tokenizes each text again whenever the transformer reads it, and aligns it again: for a tagger, that
is half of the time that a step takes beside torch's module. `KeptWordpieces` takes the place of its layer's forward
function. New texts are encoded without a loop over their wordpieces, and aligned with arrays. The results are kept for
each text, and batches are put together from them: the same to the bit, with the same padding.

SOURCE: spacy_transformers/layers/transformer_model.py (1.4.0), `forward` and `huggingface_tokenize`; data_classes.py,
    `WordpieceBatch.from_batch_encoding`; align.pyx, `get_alignment_via_offset_mapping`;
    transformers/tokenization_utils_fast.py (4.56), `PreTrainedTokenizerFast._batch_encode_plus`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import numpy
from spacy.attrs import LENGTH, ORTH, SPACY
from spacy.language import Language
from spacy.tokens import Doc, Span
from thinc.api import Model
from thinc.types import Ragged

from .host import forward_of, swap_forward
from .params import components_with_model

# Wordpieces that are kept, some 90 bytes each. Texts beyond them are read again each time: dropping the oldest would
# find nothing, as texts come in rounds.
_PIECES = 3_000_000


@dataclass(frozen=True)
class _Text:
    """Wordpieces of one text.

    ids (list): For each span an array of ids, without padding. Shape: (wordpieces,).
    types (list | None): The same for the types of tokens. None: the model has none.
    strings (list): The wordpieces of each span.
    lengths (list): The number of them, without those that are equal to padding.
    rows, columns (ndarray): The span and the place in it of each wordpiece of each token. Shape: (pairs,).
    counts (ndarray): The number of wordpieces of each token. Shape: (tokens,).
    """

    ids: list[Any]
    types: list[Any] | None
    strings: list[list[str]]
    lengths: list[int]
    rows: Any
    columns: Any
    counts: Any


class KeptWordpieces:
    """The forward function of a transformer's layer.

    at_most (int): Wordpieces to keep.

    Public: `is_on`. Where it is off, it is spacy-transformers' function. So are its copies and pickles, as the package
    may be missing where a pipeline goes.
    """

    def __init__(self, at_most: int = _PIECES):
        self._theirs = _forward()
        update_wrapper(self, self._theirs)
        self.is_on = True
        self._at_most = self._room = at_most
        self._tokenizer: Any = None
        self._texts: dict[Any, _Text] = {}
        self._strings: dict[int, str] = {}

    def __call__(self, model: Any, docs: Sequence[Doc], is_train: bool) -> tuple[Any, Callable[..., Any]]:
        from spacy_transformers.data_classes import FullTransformerBatch
        from spacy_transformers.truncate import truncate_oversize_splits
        from spacy_transformers.util import maybe_flush_pytorch_cache

        # Without offsets, text that looks like padding is aligned with that of longer texts in the batch.
        can_keep = self.is_on and model.tokenizer.is_fast and "logger" not in model.attrs
        spans = model.attrs["get_spans"](docs) if can_keep else []
        if not any(spans):
            step: tuple[Any, Callable[..., Any]] = self._theirs(model, docs, is_train)
            return step
        # It draws from `random` each time, also where nothing is flushed.
        maybe_flush_pytorch_cache(chance=model.attrs.get("flush_cache_chance", 0))
        read = self.read(model.tokenizer, spans)
        wordpieces, align = truncate_oversize_splits(*read, model.tokenizer.model_max_length)
        output, backprop = model.layers[0](wordpieces, is_train)

        def backprop_transformer(d_output: Any) -> Sequence[Doc]:
            backprop(d_output.model_output)
            return docs

        batch = FullTransformerBatch(spans=spans, wordpieces=wordpieces, model_output=output, align=align)
        return batch, backprop_transformer

    def __reduce__(self) -> Any:
        return _forward, ()

    def end(self) -> None:
        self.is_on, self._texts = False, {}

    def read(self, tokenizer: Any, spans: Sequence[Sequence[Span]]) -> tuple[Any, Ragged]:
        """The wordpieces of texts, and their alignment, before anything is cut. spans: Of each text."""
        if tokenizer is not self._tokenizer:  # a state that was loaded brings another
            self._tokenizer, self._texts, self._strings, self._room = tokenizer, {}, {}, self._at_most
        of_docs = [of_doc for of_doc in spans if of_doc]
        keys = [_key(of_doc) for of_doc in of_docs]
        new = {key: of_doc for key, of_doc in zip(keys, of_docs) if key not in self._texts}
        if not new:
            _tokenize(tokenizer, ["a"])  # a call sets the padding that the tokenizer is saved with
        read = dict(zip(new, _read(tokenizer, list(new.values()), self._strings))) if new else {}
        found = [self._texts.get(key) or read[key] for key in keys]
        for key, text in read.items():
            size = sum(map(len, text.ids))
            if size <= self._room:
                self._room -= size
                self._texts[key] = text
        return _batch(tokenizer, found)


def _tokenize(tokenizer: Any, texts: list[str]) -> Any:
    from spacy_transformers.layers.transformer_model import huggingface_tokenize

    return huggingface_tokenize(tokenizer, texts)


def _key(spans: Sequence[Span]) -> tuple[Any, ...]:
    words = spans[0].doc.to_array([ORTH, SPACY])
    return words.tobytes(), *((span.start, span.end) for span in spans)


def _read(tokenizer: Any, spans: Sequence[Sequence[Span]], known: dict[int, str]) -> list[_Text]:
    """Read texts: those of spans, of at least one for each text. known: Strings of wordpieces, by their ids."""
    encodings = iter(_encode(tokenizer, [span.text for of_doc in spans for span in of_doc]))
    found = []
    for of_doc in spans:
        rows = [next(encodings) for _ in of_doc]
        ids = [numpy.array(row.ids, dtype="int64") for row in rows]
        if new := list({one for row in rows for one in row.ids} - known.keys()):
            known.update(zip(new, tokenizer.convert_ids_to_tokens(new)))
        strings = [[known[one] for one in row.ids] for row in rows]
        tokens, at_rows, columns = _align(of_doc, [row.offsets for row in rows])
        has_types = "token_type_ids" in tokenizer.model_input_names
        found.append(
            _Text(
                ids=ids,
                types=[numpy.array(row.type_ids, dtype="int64") for row in rows] if has_types else None,
                strings=strings,
                lengths=[len(row) - row.count(tokenizer.pad_token) for row in strings],
                rows=at_rows,
                columns=columns,
                counts=numpy.bincount(tokens, minlength=len(of_doc[0].doc)).astype("i"),
            )
        )
    return found


def _encode(tokenizer: Any, texts: list[str]) -> Any:
    """The tokenizer's own encodings, without padding."""
    _tokenize(tokenizer, ["a"])  # sets all else that a call sets
    backend = tokenizer.backend_tokenizer
    padding = backend.padding
    backend.no_padding()
    try:
        return backend.encode_batch(texts)
    finally:
        backend.enable_padding(**padding)


def _align(spans: Sequence[Span], offsets: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Align the tokens of a text with wordpieces: with those that have one of its characters, or the space behind it.

    spans (list): Of the text. offsets (list): For each span, the first character and the end of each wordpiece.
    RETURNS (tuple): Tokens, and the span and place of their wordpieces, sorted. Shapes: (pairs,).
    """
    sizes, spaces = spans[0].doc.to_array([LENGTH, SPACY]).astype("int64").T
    begins = numpy.cumsum(sizes + spaces) - sizes - spaces
    pairs, width = [], max(map(len, offsets))
    for row, (span, places) in enumerate(zip(spans, offsets)):
        first, end = numpy.array(places, dtype="int64").reshape((-1, 2)).T
        n_chars = (end - first).clip(0)
        pieces = numpy.repeat(numpy.arange(len(places)), n_chars)
        chars = numpy.arange(len(pieces)) + numpy.repeat(first - numpy.cumsum(n_chars) + n_chars, n_chars)
        chars += begins[span.start]
        tokens = numpy.searchsorted(begins[: span.end], chars, side="right") - 1
        is_of_token = chars <= begins[tokens] + sizes[tokens]
        pairs.append(((tokens * len(spans) + row) * width + pieces)[is_of_token])
    tokens, places = numpy.divmod(numpy.unique(numpy.concatenate(pairs)), len(spans) * width)
    rows, columns = numpy.divmod(places, width)
    return tokens, rows.astype("i"), columns.astype("i")


def _batch(tokenizer: Any, texts: Sequence[_Text]) -> tuple[Any, Ragged]:
    """Put texts together, as spacy-transformers reads a batch of them."""
    from spacy_transformers.data_classes import WordpieceBatch

    rows = [ids for text in texts for ids in text.ids]
    width, is_left = max(map(len, rows)), _pads_left(tokenizer)
    slices = [slice(width - len(ids), width) if is_left else slice(0, len(ids)) for ids in rows]
    input_ids = _padded(rows, slices, width, tokenizer.pad_token_id)
    mask = _padded([1.0] * len(rows), slices, width, 0.0, "f")
    types = None
    if texts[0].types is not None:
        all_types = [one for text in texts for one in text.types or ()]
        types = _padded(all_types, slices, width, tokenizer.pad_token_type_id)
    strings = []
    for one in (row for text in texts for row in text.strings):
        padding = [tokenizer.pad_token] * (width - len(one))
        strings.append(padding + one if is_left else one + padding)
    places, row = [], 0
    for text in texts:
        begins = numpy.array([each.start for each in slices[row : row + len(text.ids)]])
        places.append((text.rows + row) * width + text.columns + begins[text.rows])
        row += len(text.ids)
    pairs: Any = numpy.concatenate(places).astype("i")
    counts: Any = numpy.concatenate([text.counts for text in texts])
    align = Ragged(pairs, counts)
    lengths = [length for text in texts for length in text.lengths]
    batch = WordpieceBatch(
        strings=strings, input_ids=input_ids, attention_mask=mask, lengths=lengths, token_type_ids=types
    )
    return batch, align


def _padded(rows: Sequence[Any], slices: Sequence[slice], width: int, padding: Any, dtype: Any = None) -> Any:
    """Shape: (rows, width)."""
    found = numpy.full((len(rows), width), padding, dtype=dtype or rows[0].dtype)
    for i, (row, place) in enumerate(zip(rows, slices)):
        found[i, place] = row
    return found


def _pads_left(tokenizer: Any) -> bool:
    return bool(tokenizer.padding_side == "left")


def _forward() -> Callable[..., Any]:
    from spacy_transformers.layers.transformer_model import forward

    found: Callable[..., Any] = forward
    return found


def keep_wordpieces(nlp: Language) -> list[Callable[[], None]]:
    """Let the transformers of a pipeline keep wordpieces, unless they do. RETURNS: Put theirs back, see `swap`."""
    if "spacy_transformers.layers.transformer_model" not in sys.modules:
        return []
    theirs, put_back = _forward(), []
    nodes: list[Model[Any, Any]] = [node for _, model in components_with_model(nlp) for node in model.walk()]
    for node in nodes:
        if forward_of(node) is theirs:
            kept = KeptWordpieces()
            put_back += [swap_forward(node, kept), kept.end]
    return put_back
