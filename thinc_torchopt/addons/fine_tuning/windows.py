"""Windows that are counted in wordpieces.

spacy-transformers cuts texts into windows of *words*. It pads all windows of a batch to the longest one, and of a
window that is longer than the model can read, it drops the rest in silence. Here, windows are counted by the model's
own tokenizer, and are cut between spaCy's tokens. For the time of a run they take the place of the component's: the
forward function of its layer is replaced, and nothing of the component itself.

    pieces of each token      estimated from the token alone, and remembered: texts repeat their words
    a window                  as many tokens as fit
    its text, tokenized       as the model will read it. A window that is too long after all loses tokens at its end
    the next window           begins where the overlap begins

spacy-curated-transformers counts in wordpieces itself: there, the settings are those of its own layer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import spacy
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.training.loop import create_evaluation_callback
from spacy.util import registry, resolve_dot_names
from thinc.model import Model

from ...core.errors import ConfigError
from ...core.log import LOGGER
from ...loop.random_state import preserved_random
from .transformers import BLOCK, Transformer, transformers_of

# Hugging Face's warning of a text that is longer than the model can read, which it gives once.
_TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"
# Words whose number of wordpieces is remembered.
_REMEMBERED = 200_000


class PieceCounter:
    """Counts wordpieces.

    tokenizer (PreTrainedTokenizerBase): The model's.

    Public: `special` (the number of wordpieces that are put around each text).
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._known: dict[tuple[str, bool], int] = {}
        self.special = int(tokenizer.num_special_tokens_to_add())

    def of_tokens(self, doc: Doc) -> list[int]:
        """The wordpieces of each token, without those around a text. An estimate: each token is tokenized alone."""
        keys = [(token.text, i > 0 and bool(doc[i - 1].whitespace_)) for i, token in enumerate(doc)]
        new = [key for key in dict.fromkeys(keys) if key not in self._known]
        if len(self._known) + len(new) > _REMEMBERED:
            self._known.clear()
            new = list(dict.fromkeys(keys))
        if new:
            texts = [f" {text}" if follows_space else text for text, follows_space in new]
            self._known.update(zip(new, self._count(texts, add_special_tokens=False)))
        return [self._known[key] for key in keys]

    def of_spans(self, spans: Sequence[Span]) -> list[int]:
        """The wordpieces of each span, with those around it, as the model reads them."""
        return self._count([span.text for span in spans]) if spans else []

    def _count(self, texts: list[str], **settings: Any) -> list[int]:
        # Not verbose: it warns of each text that is longer than the model can read.
        found = self._tokenizer(texts, return_attention_mask=False, verbose=False, **settings)
        return [len(ids) for ids in found["input_ids"]]


class PieceWindows:
    """Cuts docs into windows of at most so many wordpieces: a function such as those in @span_getters.

    tokenizer (PreTrainedTokenizerBase): The model's.
    window (int): The most wordpieces, with those around each text. stride (int): From one window to the next.
    tells (bool): Warn of the first token that is longer than a window.
    """

    def __init__(self, tokenizer: Any, window: int, stride: int, *, tells: bool = True):
        self._pieces = PieceCounter(tokenizer)
        self._window = window
        self._overlap = window - stride
        self._has_told = not tells

    def __call__(self, docs: Sequence[Doc]) -> list[list[Span]]:
        """The windows of each doc. Together they have all of its tokens; each but the first begins inside or right
        after the one before. A token longer than a window is one of its own.
        """
        docs = list(docs)
        found: list[list[Span]] = [[] for _ in docs]
        before = [[0, *accumulate(self._pieces.of_tokens(doc))] for doc in docs]  # pieces before each token
        starts = {i: 0 for i, doc in enumerate(docs) if len(doc)}
        while starts:
            ends = self._ends({i: docs[i] for i in starts}, before, starts)
            for i, end in ends.items():
                doc, start = docs[i], starts[i]
                if found[i] and end <= found[i][-1].end:  # behind such an overlap, the next token has no room
                    starts[i] += 1
                    continue
                found[i].append(doc[start:end])
                if end == len(doc):
                    del starts[i]
                else:
                    overlap = bisect_left(before[i], before[i][end] - self._overlap)
                    starts[i] = min(max(overlap, start + 1), end)
        return found

    def _ends(self, docs: dict[int, Doc], before: list[list[int]], starts: dict[int, int]) -> dict[int, int]:
        """The end of one window in each doc that begins at a token."""
        room = max(1, self._window - self._pieces.special)
        ends = {i: max(starts[i] + 1, bisect_right(before[i], before[i][starts[i]] + room) - 1) for i in docs}
        open_ = list(docs)
        while open_:
            lengths = self._pieces.of_spans([docs[i][starts[i] : ends[i]] for i in open_])
            too_long = {i: length - self._window for i, length in zip(open_, lengths) if length > self._window}
            for i in [i for i in too_long if ends[i] == starts[i] + 1]:
                self._tell_of_long_token(docs[i][starts[i]].text, too_long.pop(i) + self._window)
            for i, excess in too_long.items():
                shorter = bisect_right(before[i], before[i][ends[i]] - excess) - 1
                ends[i] = max(starts[i] + 1, min(shorter, ends[i] - 1))
            open_ = list(too_long)
        return ends

    def _tell_of_long_token(self, text: str, length: int) -> None:
        if not self._has_told:
            LOGGER.warning(
                "A token has more wordpieces than a window: %d, '%s'. The model reads the first %d. More such tokens "
                "are not mentioned.",
                length - self._pieces.special,
                text if len(text) <= 40 else f"{text[:40]}...",
                self._window - self._pieces.special,
            )
        self._has_told = True


@dataclass(frozen=True)
class Lost:
    """The part of texts that a model loses.

    windows (int): All windows. cut (int): Those that are longer than the model can read.
    pieces (int): All wordpieces that it should read. lost (int): Those that it does not.
    """

    windows: int = 0
    cut: int = 0
    pieces: int = 0
    lost: int = 0

    def __str__(self) -> str:
        share = 100 * self.lost / self.pieces if self.pieces else 0.0
        of_text = f"{share:.1f}%" if share >= 0.1 else "less than 0.1%"
        return f"{self.cut:,} of {self.windows:,} windows lose wordpieces: {of_text} of the text"


def count_lost(transformer: Transformer, get_spans: Any, docs: Sequence[Doc], batch: int = 100) -> Lost:
    """Count the windows that are longer than a model can read, and what they lose.

    transformer (Transformer): One of spacy-transformers. get_spans (Callable): Makes the windows.
    """
    longest, pieces = transformer.longest_input, PieceCounter(transformer.tokenizer)
    lengths: list[int] = []
    for start in range(0, len(docs), batch):
        windows = get_spans([doc for doc in docs[start : start + batch] if len(doc)])
        lengths += pieces.of_spans([span for spans in windows for span in spans])
    excess = [] if longest is None else [length - longest for length in lengths if length > longest]
    return Lost(len(lengths), len(excess), sum(lengths), sum(excess))


def check_window(nlp: Language, exclude: Collection[str], window: int) -> None:
    """RAISES (ConfigError): A transformer that is trained can't read windows so long."""
    for transformer in transformers_of(nlp, exclude):
        longest = transformer.longest_input
        if longest is not None and window > longest:
            raise ConfigError(
                f"Can't set 'window_pieces' in {BLOCK}: expected at most {longest}, as '{transformer.component}' can "
                f"read no more at once, found {window}."
            )


def forward_in_windows(
    forward: Callable[..., Any], windows: PieceWindows, window: int
) -> Callable[[Model, Any, bool], Any]:
    """The forward function of spacy-transformers' layer, with other windows.

    forward (Callable): Its own. windows (PieceWindows): In place of its span getter.
    window (int): The most wordpieces of a window: the rest of a longer one is dropped.
    """

    def forward_of_windows(model: Model, docs: Any, is_train: bool) -> Any:
        tokenizer: Any = model.tokenizer  # type: ignore[attr-defined]
        get_spans, longest = model.attrs["get_spans"], tokenizer.model_max_length
        model.attrs["get_spans"], tokenizer.model_max_length = windows, min(window, longest)
        tokenizer.deprecation_warnings[_TOO_LONG] = True  # it is cut, and was told
        try:
            return forward(model, docs, is_train)
        finally:
            model.attrs["get_spans"], tokenizer.model_max_length = get_spans, longest

    return forward_of_windows


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
