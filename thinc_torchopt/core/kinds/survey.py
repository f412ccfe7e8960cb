"""The annotations of texts, counted by kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from spacy.tokens import Doc
from spacy.training import Example

from .categories import Categories
from .kind import Found, Kind
from .spans import Entities, Links, Spans
from .words import Lemmas, Morphology, Sentences, Tags, Trees

_IN_ANY_TEXT = Tags(), Morphology(), Lemmas(), Trees(), Sentences(), Entities(), Links(), Categories()


@dataclass
class Annotations:
    """The annotations of a corpus, counted.

    texts, words (int): All of them.
    places (dict[str, Found]): By place. Spans: only under the keys that a text has.
    """

    texts: int = 0
    words: int = 0
    places: dict[str, Found] = field(default_factory=lambda: {kind.place: kind.found() for kind in _IN_ANY_TEXT})

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
    return found
