"""The worst errors of a trained pipeline on annotated texts.

*kind*: as in kinds.py. *passage*: a part of a text: sentences where they are annotated or predicted, otherwise the
whole text; at most `_MOST_WORDS` words, never cut within an entity or a span. *wrong*: annotations of a passage that
were not predicted, and predictions that are not annotated; of tags and trees, the words that have some. A passage is
worse the more of it is wrong; of two with as much wrong, the one with less right. Categories belong to a text: it is
worse the further the score of a category is from its annotation, 0 or 1.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import spacy
from spacy.language import Language
from spacy.scorer import Scorer
from spacy.tokens import Doc
from spacy.training import Corpus, Example

from ...core.errors import ConfigError
from .kinds import Categories, Items, Kind, kinds_of

# For each kind.
N_WORST = 20
_MOST_WORDS, _MOST_CHARACTERS = 60, 1000
# Words of a text that is shown as a whole.
_MOST_OF_TEXT = 120


class Mark(NamedTuple):
    """An annotation or a prediction. start, end (int): Characters of its passage.

    head (int | None): Of trees: where the word of its head begins; itself: a root; None: outside of the passage.
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
    annotated, predicted (list[Mark]): Of tags and trees, those that differ; of entities and spans, all.
    categories (list[tuple]): Of categories: name, whether it is annotated, score.
    badness (float | None): None: as much as is wrong.
    """

    number: int
    wrong: int
    right: int
    words: list[str]
    is_cut: bool
    annotated: list[Mark] = field(default_factory=list)
    predicted: list[Mark] = field(default_factory=list)
    categories: list[tuple[str, bool, float]] = field(default_factory=list)
    badness: float | None = None

    @property
    def text(self) -> str:
        return "".join(self.words)


@dataclass
class KindOfErrors:
    """The errors of a kind, and its counts.

    kind (str): As the names of spaCy's scores begin.
    components (list[str]): Those that predict it. is_shared (bool): Others predict the same kind at other places.
    annotated, predicted, right (Counter): By row of the table of labels.
    auc (dict): Of categories, by label.
    wrong (int): All errors. n_passages (int): The passages that have them.
    worst (list[Passage]): The worst ones first. told (str): How good it is, in a sentence.
    """

    kind: str
    components: list[str]
    is_shared: bool = False
    annotated: Counter[str] = field(default_factory=Counter)
    predicted: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    auc: dict[str, float | None] = field(default_factory=dict)
    wrong: int = 0
    n_passages: int = 0
    worst: list[Passage] = field(default_factory=list)
    told: str = ""

    @property
    def name(self) -> str:
        """One that no other has."""
        return f"{self.kind} of '{self.components[0]}'" if self.is_shared else self.kind


@dataclass
class Compared:
    """A pipeline compared with annotations. name (str): The file of the texts."""

    name: str
    n_texts: int
    n_words: int
    is_right_to_left: bool
    kinds: list[KindOfErrors] = field(default_factory=list)


def load(folder: Path) -> Language:
    """Load a trained pipeline. RAISES (ConfigError): The pipeline can't be loaded."""
    try:
        return spacy.load(folder)
    except Exception as error:  # of any component
        said = " ".join(str(error).split())
        raise ConfigError(
            f"Can't load the trained pipeline {folder}: {said[:300].rstrip('.')}. If it has components of your own, "
            "add --code functions.py."
        ) from error


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
        return compare_examples(nlp, examples, path.name)
    except Exception as error:
        raise ConfigError(
            f"Can't compare the pipeline with {path}: it fails on these texts: {_first_line(error)}. Give texts like "
            "those it was trained on."
        ) from error


def compare_examples(nlp: Language, examples: Sequence[Example], name: str) -> Compared:
    """Compare predictions with annotations. name (str): Of the texts."""
    scores = Scorer(nlp).score(examples, per_component=True)
    found = Compared(
        name,
        len(examples),
        sum(len(example.reference) for example in examples),
        nlp.vocab.writing_system.get("direction") == "rtl",
    )
    kinds = kinds_of(nlp, examples)
    keys = Counter(kind.key for kind, _ in kinds)
    for kind, components in kinds:
        errors = KindOfErrors(kind.key, components, keys[kind.key] > 1)
        of_component = scores.get(components[0], {})
        errors.told = kind.told(of_component)
        if isinstance(kind, Categories):
            errors.auc = of_component.get("cats_auc_per_type", {})
        _find_worst(errors, kind, examples)
        if errors.annotated or errors.wrong:
            found.kinds.append(errors)
    return found


def _find_worst(errors: KindOfErrors, kind: Kind, examples: Sequence[Example]) -> None:
    """Count the annotations and predictions of a kind, and find the passages with most errors."""
    heap: list[tuple[tuple[float, int, int], int, Passage]] = []
    for number, example in enumerate(examples, 1):
        annotated, predicted = kind.compare(example)
        rows = [set(kind.in_rows(items, annotated)) for items in (annotated, predicted)]
        for counts, items in zip((errors.annotated, errors.predicted, errors.right), (*rows, rows[0] & rows[1])):
            counts.update(item.row for item in items)
        for passage in passages_of(kind, example, annotated, predicted):
            if passage.wrong:
                errors.wrong += passage.wrong
                errors.n_passages += 1
                passage.number = number
                badness = passage.wrong if passage.badness is None else passage.badness
                entry = ((badness, -passage.right, -number), errors.n_passages, passage)
                heapq.heappush(heap, entry) if len(heap) < N_WORST else heapq.heappushpop(heap, entry)
    errors.worst = [passage for _, _, passage in sorted(heap, reverse=True)]


# ---------------------------------------------------------------------- passages


def passages_of(kind: Kind, example: Example, annotated: Items, predicted: Items) -> Iterator[Passage]:
    """The passages of a text with the items in it. Of one without any: none."""
    if isinstance(kind, Categories):
        return _of_text(kind, example, annotated, predicted)
    return _of_passages(kind, example, annotated, predicted) if annotated or predicted else iter(())


def _of_passages(kind: Kind, example: Example, annotated: Items, predicted: Items) -> Iterator[Passage]:
    """The passages of a text, with their items."""
    doc = example.predicted
    spans = [] if kind.is_of_tokens else [place[:2] for items in (annotated, predicted) for place in items.values()]
    passages = list(_passages(doc, example.reference, spans))
    starts = [doc[first].idx for first, _ in passages]
    parts: list[tuple[Items, Items]] = [({}, {}) for _ in passages]
    for side, items in enumerate((annotated, predicted)):
        for item, place in items.items():
            parts[max(0, bisect_right(starts, place.start) - 1)][side][item] = place
    right = annotated.keys() & predicted.keys()
    for (first, last), start, sides in zip(passages, starts, parts):
        words, is_cut = _words(doc, first, last)
        marks = [[*_marks(items, right, kind, start, sum(map(len, words)))] for items in sides]
        wrong = [item for items in sides for item in items if item not in right]
        yield Passage(
            0,
            len({item.start for item in wrong} if kind.is_of_tokens else wrong),
            sum(item in right for item in sides[0]),
            words,
            is_cut,
            marks[0],
            marks[1],
        )


def _marks(items: Items, right: Any, kind: Kind, start: int, room: int) -> Iterator[Mark]:
    """The marks of items in a passage. start (int): Its first character. room (int): How many of it are shown."""
    for item, place in sorted(items.items(), key=lambda one: (one[1][:2], one[0])):
        if place.start - start < room and not (kind.is_of_tokens and item in right):
            head = None if place.head is None or not 0 <= place.head - start < room else place.head - start
            end = min(place.end - start, room)
            yield Mark(place.start - start, end, item.label or "nothing", item in right, head)


def _of_text(kind: Categories, example: Example, annotated: Items, predicted: Items) -> Iterator[Passage]:
    """A text, with its categories. Of one without, nothing is shown."""
    values, scores = kind.values(example)
    if not values:
        return
    held, chosen = ({item.label for item in items} for items in (annotated, predicted))
    differ = held ^ chosen
    shown = sorted(held | chosen, key=lambda name: (-values.get(name, 0.0), -scores.get(name, 0.0)))
    words, is_cut = _words(example.predicted, 0, _MOST_OF_TEXT)
    yield Passage(
        0,
        len(differ),
        len(values.keys() | differ) - len(differ),
        words,
        is_cut or len(example.predicted) > _MOST_OF_TEXT,
        categories=[(name, name in held, scores.get(name, 0.0)) for name in shown],
        badness=max((abs((name in held) - scores.get(name, 0.0)) for name in differ), default=0.0),
    )


def _passages(doc: Doc, reference: Doc, spans: Any) -> Iterator[tuple[int, int]]:
    """The passages of a text, as tokens of the prediction. None is cut within one of the spans, given by characters."""
    if not len(doc):
        return
    starts = {token.idx for token in reference if token.is_sent_start} if reference.has_annotation("SENT_START") else ()
    if not starts and doc.has_annotation("SENT_START"):
        starts = {token.idx for token in doc if token.is_sent_start}
    inside = {i for start, end in spans for i in range(start + 1, end)}
    first = 0
    for token in doc:
        is_full = token.i - first >= _MOST_WORDS
        if token.i > first and (token.idx in starts or is_full) and token.idx not in inside:
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
