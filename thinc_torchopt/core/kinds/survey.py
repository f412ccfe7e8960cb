"""The annotations of texts, counted by kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from spacy.attrs import DEP, ENT_IOB, ENT_KB_ID, ENT_TYPE, HEAD, LEMMA, MORPH, POS, SENT_START, TAG
from spacy.tokens import Doc
from spacy.training import Example

from ..words import counted, listed
from .categories import Categories
from .kind import Found, Kind
from .spans import Entities, Links, Spans
from .words import Lemmas, Morphology, Sentences, Tags, Trees

_ATTRS: Final = [TAG, POS, MORPH, LEMMA, HEAD, DEP, SENT_START, ENT_IOB, ENT_TYPE, ENT_KB_ID]
_IN_ANY_TEXT = Tags(), Morphology(), Lemmas(), Trees(), Sentences(), Entities(), Links(), Categories()


@dataclass
class Tally:
    """Counts of things by words for them, and the first three of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, what: str, example: str = "") -> None:
        """Count one. example (str): It, as it stands there."""
        self.counts[what] += 1
        shown = self.examples.setdefault(what, [])
        if example and len(shown) < 3:
            shown.append(repr(example if len(example) <= 60 else f"{example[:57]}..."))

    def lines(self) -> Iterator[str]:
        """It in words, a line for each thing."""
        for what, n in self.counts.items():
            shown = self.examples.get(what)
            yield f"{what}: {n:,}{f' ({listed(shown)})' if shown else ''}."


@dataclass
class Annotations:
    """The annotations of a corpus, counted.

    texts, words (int): All of them.
    places (dict[str, Found]): By place. Spans: only under the keys that a text has.
    repeated (Tally): Texts that stood there before. seen (dict): By text, its first annotations; both as hashes.
    """

    TWICE: ClassVar = "Texts that stand there twice"
    DIFFERENT: ClassVar = f"{TWICE}, annotated in other ways"
    texts: int = 0
    words: int = 0
    places: dict[str, Found] = field(default_factory=lambda: {kind.place: kind.found() for kind in _IN_ANY_TEXT})
    repeated: Tally = field(default_factory=Tally)
    seen: dict[int, int] = field(default_factory=dict, compare=False)

    def of(self, kind: Kind) -> Any:
        """RETURNS (Found): What a component learns from, in the form of its kind."""
        return self.places.get(kind.place) or kind.found()

    @property
    def spans(self) -> list[Spans]:
        """Those of the keys that texts have."""
        keys = [place.removeprefix("spans/") for place in self.places if place.startswith("spans/")]
        return [Spans(settings={"spans_key": key}) for key in keys]

    @property
    def kinds(self) -> list[Kind]:
        """All that texts have."""
        return [kind for kind in (*_IN_ANY_TEXT, *self.spans) if self.of(kind).texts]

    def lines(self) -> Iterator[str]:
        """The labels with their counts, and texts that stand there twice, in words."""
        for kind in self.kinds:
            labels, most = self.of(kind).labels, 5 if kind.is_of_each_word else 10
            if kind.has_labels and labels:
                yield f"{kind.in_words[:1].upper()}{kind.in_words[1:]}: {counted(labels, most)}."
        yield from self.repeated.lines()

    def fault(self, kind: Kind) -> str:
        """Why a component has nothing to learn here, in words. Empty: it has, or this is unknown for its kind."""
        if not kind.is_known:
            return ""
        found = self.of(kind)
        return kind.fault(found) if found.texts else f"none of the {self.texts:,} texts has {kind.in_words}"


def survey(texts: Iterable[Doc | Example]) -> Annotations:
    """Count the annotations of texts. Nothing is changed, and no random number is drawn.

    texts (Iterable): Examples are counted by their reference.
    """
    found = Annotations()
    for text in texts:
        doc = text.reference if isinstance(text, Example) else text
        found.texts += 1
        found.words += len(doc)
        for kind in (*_IN_ANY_TEXT, *(Spans(settings={"spans_key": key}) for key in doc.spans)):
            kind.count(doc, found.places.setdefault(kind.place, kind.found()))
        _look_for(doc, found)
    return found


def _look_for(doc: Doc, found: Annotations) -> None:
    """Look whether a text stood there before, and with the same annotations."""
    text = doc.text
    if not text.strip():
        return
    groups = sorted((key, one.start, one.end, one.label) for key, spans in doc.spans.items() for one in spans)
    annotations = hash((doc.to_array(_ATTRS).tobytes(), tuple(groups), frozenset(doc.cats.items())))
    if (key := hash(text)) not in found.seen:
        found.seen[key] = annotations
    else:
        found.repeated.note(found.TWICE if found.seen[key] == annotations else found.DIFFERENT, text)
