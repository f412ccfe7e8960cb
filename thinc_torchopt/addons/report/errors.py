"""The worst errors of a trained pipeline on annotated texts.

*kind*: as in labels.py. *passage*: a part of a text: sentences where they are annotated or predicted, otherwise the
whole text; at most `_MOST_WORDS` words, never cut within an entity or a span. *wrong*: annotations of a passage that
were not predicted, and predictions that are not annotated. A passage is worse the more of it is wrong; of two with as
much wrong, the one with less right. Categories belong to a text: it is worse the further the score of a category is
from its annotation, 0 or 1.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from spacy.language import Language
from spacy.scorer import Scorer
from spacy.tokens import Doc
from spacy.training import Corpus, Example

from ...core.errors import ConfigError
from .labels import Counts

# For each kind.
N_WORST = 20
_MOST_WORDS, _MOST_CHARACTERS = 60, 1000
# spaCy's scorer of trees leaves them out.
_NO_DEPS = ("p", "punct")
# Attributes of tokens that are compared, by what a component assigns.
_TOKEN_KINDS = {"token.tag": ("tag", "TAG"), "token.pos": ("pos", "POS"), "token.morph": ("morph", "MORPH")}


class Mark(NamedTuple):
    """An annotation or a prediction. start, end (int): Characters of its passage; of trees and tags: its token.

    head (int | None): Of trees: the token of its head; itself: a root; None: outside of the passage.
    """

    start: int
    end: int
    label: str
    is_right: bool
    head: int | None = None


@dataclass
class Passage:
    """A passage with errors.

    number (int): That of its text, from 1.
    words (list[str]): With the white space after each.
    annotated, predicted (list[Mark]): Of trees, those that differ; of entities and spans, all.
    categories (list[tuple]): Of categories: name, whether it is annotated, score.
    """

    number: int
    wrong: int
    right: int
    words: list[str]
    annotated: list[Mark] = field(default_factory=list)
    predicted: list[Mark] = field(default_factory=list)
    categories: list[tuple[str, bool, float]] = field(default_factory=list)
    is_cut: bool = False
    badness: float = 0.0

    @property
    def text(self) -> str:
        return "".join(self.words)


@dataclass
class KindOfErrors:
    """The errors of a kind.

    component (str): That which predicts it.
    wrong (int): All errors. n_passages (int): The passages that have them.
    worst (list[Passage]): The worst ones first.
    """

    kind: str
    component: str
    wrong: int = 0
    n_passages: int = 0
    worst: list[Passage] = field(default_factory=list)


@dataclass
class Compared:
    """A pipeline compared with annotations.

    name (str): The file of the texts.
    scores (dict): As spaCy computes them, from 0 to 1.
    annotated, predicted, right (dict): Counts of labels by kind.
    """

    name: str
    n_texts: int
    n_words: int
    scores: dict[str, Any]
    is_right_to_left: bool
    kinds: list[KindOfErrors] = field(default_factory=list)
    annotated: Counts = field(default_factory=lambda: defaultdict(Counter))
    predicted: Counts = field(default_factory=lambda: defaultdict(Counter))
    right: Counts = field(default_factory=lambda: defaultdict(Counter))


def compare(nlp: Language, path: Path) -> Compared:
    """Let a pipeline predict the annotations of texts.

    path (Path): A .spacy file, or a folder of such files.
    RAISES (ConfigError): It is no such file, has no texts, or the pipeline fails.
    """
    if not path.exists():
        raise ConfigError(f"Can't read the texts {path}: there is no file or folder of that name. Correct the path.")
    try:
        examples = list(Corpus(path)(nlp))
    except Exception as error:  # srsly's and zlib's own kinds
        raise ConfigError(
            f"Can't read the texts {path}: expected a file in spaCy's format (.spacy), found another: "
            f"{_first_line(error)}. Convert it: python -m spacy convert."
        ) from error
    if not examples:
        raise ConfigError(
            f"Can't compare the pipeline with {path}: expected at least one text, found none. Name "
            "another file in --texts."
        )
    try:
        for example, doc in zip(examples, nlp.pipe([example.predicted for example in examples])):
            example.predicted = doc
        scores = Scorer(nlp).score(examples)
    except Exception as error:
        raise ConfigError(
            f"Can't compare the pipeline with {path}: it fails on these texts: {_first_line(error)}. Give texts like "
            "those it was trained on."
        ) from error
    found = Compared(
        path.name,
        len(examples),
        sum(len(example.reference) for example in examples),
        scores,
        nlp.vocab.writing_system.get("direction") == "rtl",
    )
    for kind, component, passages_of in _kinds(nlp, examples, found):
        errors = KindOfErrors(kind, component)
        heap: list[tuple[tuple[float, int, int], int, Passage]] = []
        for number, example in enumerate(examples, 1):
            for passage in passages_of(example):
                if not passage.wrong:
                    continue
                errors.wrong += passage.wrong
                errors.n_passages += 1
                passage.number = number
                worse = (passage.badness or passage.wrong, -passage.right, -number)
                entry = (worse, errors.n_passages, passage)
                heapq.heappush(heap, entry) if len(heap) < N_WORST else heapq.heappushpop(heap, entry)
        errors.worst = [passage for _, _, passage in sorted(heap, reverse=True)]
        if kind in found.right or errors.wrong:
            found.kinds.append(errors)
    return found


_PassagesOf = Callable[[Example], Iterator[Passage]]


def _kinds(nlp: Language, examples: Sequence[Example], found: Compared) -> Iterator[tuple[str, str, _PassagesOf]]:
    """The kinds that trained components predict, each with its component and the function that compares a text."""
    seen = set()
    for name, proc in nlp.pipeline:
        if not getattr(proc, "is_trainable", False):
            continue
        for what in nlp.get_pipe_meta(name).assigns:
            if what in seen:
                continue
            seen.add(what)
            if what == "doc.ents":
                yield "ents", name, _bound(_spans, found, "ents", _entities)
            elif what == "doc.spans":
                for key in sorted({key for example in examples for key in example.reference.spans}):
                    yield f"spans_{key}", name, _bound(_spans, found, f"spans_{key}", _span_group(key))
            elif what == "doc.cats":
                is_exclusive = nlp.get_pipe_meta(name).factory == "textcat"
                cfg = getattr(proc, "cfg", {})
                threshold = cfg.get("threshold", 0.5) if isinstance(cfg, dict) else 0.5
                yield "cats", name, _bound(_categories, found, None if is_exclusive else threshold)
            elif what == "token.dep":
                yield "dep", name, _bound(_trees, found)
            elif what in _TOKEN_KINDS:
                kind, attribute = _TOKEN_KINDS[what]
                yield kind, name, _bound(_tokens, found, kind, attribute)


def _bound(function: Callable[..., Iterator[Passage]], *arguments: Any) -> _PassagesOf:
    return lambda example: function(example, *arguments)


# ---------------------------------------------------------------------- entities and spans


def _entities(doc: Doc) -> list[Any] | None:
    return list(doc.ents) if doc.has_annotation("ENT_IOB") else None


def _span_group(key: str) -> Callable[[Doc], list[Any] | None]:
    return lambda doc: list(doc.spans[key]) if key in doc.spans else None


def _spans(
    example: Example, found: Compared, kind: str, spans_of: Callable[[Doc], list[Any] | None]
) -> Iterator[Passage]:
    spans = spans_of(example.reference)
    if spans is None:  # not annotated: not scored
        return
    annotated = {(span.start_char, span.end_char, span.label_) for span in spans}
    predicted = {(span.start_char, span.end_char, span.label_) for span in spans_of(example.predicted) or ()}
    if kind == "ents":
        unknown = [(token.idx, token.idx + len(token)) for token in example.reference if not token.ent_iob]
        predicted = {span for span in predicted if not any(start < span[1] and span[0] < end for start, end in unknown)}
    right = annotated & predicted
    for counts, those in ((found.annotated, annotated), (found.predicted, predicted), (found.right, right)):
        counts[kind].update(label for _, _, label in those)
    doc = example.predicted
    for first, last in _passages(doc, example.reference, annotated | predicted):
        start, end = doc[first].idx, doc[last - 1].idx + len(doc[last - 1])
        here, there = (
            sorted(span for span in those if start <= span[0] < max(end, start + 1)) for those in (annotated, predicted)
        )
        wrong = len(set(here) ^ set(there))
        words, is_cut = _words(doc, first, last)
        room = sum(map(len, words))
        marks = [
            [
                Mark(a - start, min(b - start, room), label, (a, b, label) in right)
                for a, b, label in those
                if a - start < room
            ]
            for those in (here, there)
        ]
        yield Passage(0, wrong, len(set(here) & set(there)), words, marks[0], marks[1], is_cut=is_cut)


# ---------------------------------------------------------------------- tags and trees


def _tokens(example: Example, found: Compared, kind: str, attribute: str) -> Iterator[Passage]:
    if not example.reference.has_annotation(attribute):
        return
    doc = example.predicted
    annotated = example.get_aligned(attribute, as_string=True)
    predicted = [str(token.morph) if kind == "morph" else getattr(token, f"{kind}_") for token in doc]
    if kind == "tag":
        for here, there in zip(annotated, predicted):
            if here is not None:
                found.annotated[kind][here] += 1
                found.predicted[kind][there] += 1
                found.right[kind][here] += here == there
    for first, last in _passages(doc, example.reference, ()):
        differ = [i for i in range(first, last) if annotated[i] is not None and annotated[i] != predicted[i]]
        known = sum(annotated[i] is not None for i in range(first, last))
        words, is_cut = _words(doc, first, last)
        marks = [
            [Mark(i - first, i - first + 1, labels[i] or "nothing", False) for i in differ if i - first < len(words)]
            for labels in (annotated, predicted)
        ]
        yield Passage(0, len(differ), known - len(differ), words, marks[0], marks[1], is_cut=is_cut)


def _trees(example: Example, found: Compared) -> Iterator[Passage]:
    if not example.reference.has_annotation("DEP") or not example.reference.has_annotation("HEAD"):
        return
    doc = example.predicted
    heads, deps = example.get_aligned_parse(projectivize=False)
    counted = [
        heads[i] is not None and deps[i] is not None and deps[i].lower() not in _NO_DEPS for i in range(len(doc))
    ]
    here = [(head, (dep or "").lower()) for head, dep in zip(heads, deps)]
    there = [(token.head.i, token.dep_.lower()) for token in doc]
    for i, is_counted in enumerate(counted):
        if is_counted:
            found.annotated["dep"][here[i][1]] += 1
            found.right["dep"][here[i][1]] += here[i] == there[i]
        if deps[i] is not None and there[i][1] not in _NO_DEPS:
            found.predicted["dep"][there[i][1]] += 1
    for first, last in _passages(doc, example.reference, ()):
        differ = [i for i in range(first, last) if counted[i] and here[i] != there[i]]
        right = sum(counted[first:last]) - len(differ)
        words, is_cut = _words(doc, first, last)
        marks = [
            [_arc(i, arcs[i], first, len(words)) for i in differ if i - first < len(words)] for arcs in (here, there)
        ]
        yield Passage(0, len(differ), right, words, marks[0], marks[1], is_cut=is_cut)


def _arc(i: int, arc: tuple[Any, str], first: int, n: int) -> Mark:
    head = int(arc[0]) - first
    return Mark(i - first, i - first + 1, arc[1], False, head if 0 <= head < n else None)


# ---------------------------------------------------------------------- categories


def _categories(example: Example, found: Compared, threshold: float | None) -> Iterator[Passage]:
    """threshold (float | None): None: one category holds, that with the highest score."""
    annotated, scores = example.reference.cats, example.predicted.cats
    names = [name for name in scores if name in annotated]
    if not names:
        return
    best = max(scores.values())
    chosen = {name: scores[name] == best if threshold is None else scores[name] >= threshold for name in names}
    holds = {name: annotated[name] > 0.5 for name in names}
    for name in names:
        found.annotated["cats"][name] += holds[name]
        found.predicted["cats"][name] += chosen[name]
        found.right["cats"][name] += holds[name] and chosen[name]
    differ = [name for name in names if chosen[name] != holds[name]]
    shown = sorted(
        (name for name in names if holds[name] or chosen[name]), key=lambda name: (-holds[name], -scores[name])
    )
    doc = example.predicted
    words, is_cut = _words(doc, 0, min(len(doc), 2 * _MOST_WORDS))
    yield Passage(
        0,
        len(differ),
        len(names) - len(differ),
        words,
        categories=[(name, holds[name], float(scores[name])) for name in shown],
        is_cut=is_cut or len(doc) > 2 * _MOST_WORDS,
        badness=max((abs(holds[name] - float(scores[name])) for name in differ), default=0.0),
    )


# ---------------------------------------------------------------------- passages


def _passages(doc: Doc, reference: Doc, spans: Any) -> Iterator[tuple[int, int]]:
    """The passages of a text, as tokens of the prediction. None is cut within one of the spans, given by characters."""
    if not len(doc):
        return
    starts = {token.idx for token in reference if token.is_sent_start} if reference.has_annotation("SENT_START") else ()
    if not starts and doc.has_annotation("SENT_START"):
        starts = {token.idx for token in doc if token.is_sent_start}
    inside = [False] * (len(doc.text) + 1)
    for start, end, *_ in spans:
        inside[start + 1 : end] = [True] * max(0, end - start - 1)
    first = 0
    for token in doc:
        is_full = token.i - first >= _MOST_WORDS
        if token.i > first and (token.idx in starts or is_full) and not inside[token.idx]:
            yield first, token.i
            first = token.i
    yield first, len(doc)


def _words(doc: Doc, first: int, last: int) -> tuple[list[str], bool]:
    """The words of a passage with the white space after each, and whether they were cut."""
    words: list[str] = []
    room = _MOST_CHARACTERS
    for token in doc[first:last]:
        text = token.text_with_ws
        if len(text) > room:
            return [*words, text[:room]] if room else words, True
        words.append(text)
        room -= len(text)
    return words, False


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")
