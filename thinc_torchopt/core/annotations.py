"""Which annotations texts have, and whether a component can learn from them.

A *kind* is what a component learns from, such as entities. A text *has* it if somebody annotated it, even as having
none: entities are missing in a text with no word on them, and not in one whose tokens are all outside of entities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy
from spacy.attrs import DEP, ENT_IOB, HEAD, LEMMA, MORPH, ORTH, POS, SENT_START, TAG
from spacy.tokens import Doc
from spacy.training import Example

Kind = Literal[
    "tags", "morphology", "lemmas", "trees", "sentences", "entities", "links", "categories", "spans"
]  # fmt: skip

# The annotations that the factories of spaCy learn from.
LEARNS_FROM: Final[dict[str, Kind]] = {
    "tagger": "tags",
    "morphologizer": "morphology",
    "trainable_lemmatizer": "lemmas",
    "parser": "trees",
    "senter": "sentences",
    "ner": "entities",
    "beam_ner": "entities",
    "entity_linker": "links",
    "textcat": "categories",
    "textcat_multilabel": "categories",
    "spancat": "spans",
    "spancat_singlelabel": "spans",
    "span_finder": "spans",
}
OF_EACH_WORD: Final[frozenset[Kind | None]] = frozenset(("tags", "morphology", "lemmas", "trees", "sentences"))
_IN_WORDS: Final[dict[Kind, str]] = {
    "morphology": "morphological features",
    "trees": "dependency trees",
    "sentences": "sentence boundaries",
    "links": "entities with an id of the knowledge base",
}
# A lemmatizer learns a change from form to lemma that is this frequent. SOURCE: spaCy's default for min_tree_freq.
LEAST_CHANGES: Final = 3
# The factories that learn transitions.
PARSERS: Final = ("parser", "beam_parser")
NERS: Final = ("ner", "beam_ner")
# A parser learns no transition that is rarer. SOURCE: spaCy's default for min_action_freq.
LEAST_ACTIONS: Final = 30
# With fewer arcs to either side, a parser has no actions for them, and its training stops with E1031. SOURCE:
# spacy/pipeline/_parser_internals/arc_eager.pyx, `get_actions`, which counts shifts and reductions from 1.
_LEAST_ARCS: Final = LEAST_ACTIONS - 1
_COLUMNS: Final = (ORTH, TAG, POS, MORPH, LEMMA, DEP, HEAD, ENT_IOB, SENT_START)


def in_words(kind: Kind, spans_key: str = "") -> str:
    """A kind of annotations in words. spans_key (str): Only for spans."""
    return f"spans under the key '{spans_key}'" if kind == "spans" and spans_key else _IN_WORDS.get(kind, kind)


def annotations_of(factory: str, spans_key: str) -> str:
    """The annotations that a component learns from, in words. Empty: unknown. spans_key (str): Only for spans."""
    kind = LEARNS_FROM.get(factory)
    return "" if kind is None else in_words(kind, spans_key)


def has_annotation(doc: Doc, kind: Kind, spans_key: str = "sc") -> bool:
    """Whether somebody annotated a text, even as having none. kind (Kind): Entities, categories or spans."""
    if kind == "spans":
        return spans_key in doc.spans
    return bool(doc.cats) if kind == "categories" else kind == "entities" and doc.has_annotation("ENT_IOB")


@dataclass
class Found:
    """The annotations of one kind.

    texts (int): Texts that have it. words (int): Their words.
    labels (Counter[str]): How often each label occurs. Of lemmas: "=" or "form>lemma"; of sentences: "start"; of
    categories: those that hold, with 1 as value.
    """

    texts: int = 0
    words: int = 0
    labels: Counter[str] = field(default_factory=Counter)

    def add(self, text: Doc, labels: Iterable[str]) -> None:
        """Count a text that has it."""
        self.texts += 1
        self.words += len(text)
        self.labels.update(labels)


@dataclass
class Categories:
    """How the categories of texts go together.

    names (set[str]): All of them, those that never hold too.
    none, several (int): Texts with none, and with more than one that holds.
    between (int): Texts with a value that is neither 0 nor 1.
    denied (set[str]): Categories that a text says not to have.
    """

    names: set[str] = field(default_factory=set)
    none: int = 0
    several: int = 0
    between: int = 0
    denied: set[str] = field(default_factory=set)

    @property
    def are_exclusive(self) -> bool:
        """Whether each text has exactly one."""
        return not self.none and not self.several and not self.between


@dataclass
class Annotations:
    """The annotations of a corpus, counted.

    texts, words (int): All of them.
    kinds (dict[Kind, Found]): All kinds but spans, of which no text may have any.
    spans (dict[str, Found]): By key.
    span_lengths (dict[str, Counter[int]]): By key, how many spans have how many tokens.
    left_arcs, right_arcs (int): Tokens of trees whose head comes after them, and before them.
    """

    texts: int = 0
    words: int = 0
    kinds: dict[Kind, Found] = field(
        default_factory=lambda: {kind: Found() for kind in LEARNS_FROM.values() if kind != "spans"}
    )
    spans: dict[str, Found] = field(default_factory=dict)
    span_lengths: dict[str, Counter[int]] = field(default_factory=dict)
    categories: Categories = field(default_factory=Categories)
    left_arcs: int = 0
    right_arcs: int = 0

    def of(self, factory: str, spans_key: str = "sc") -> Found | None:
        """The kind of annotations that a component learns from. None: unknown for this factory."""
        kind = LEARNS_FROM.get(factory)
        return self.spans.get(spans_key, Found()) if kind == "spans" else self.kinds.get(kind) if kind else None

    def fault(self, factory: str, spans_key: str = "sc") -> str:
        """Why a component has nothing to learn here, in words. Empty: it has, or this is unknown for its factory."""
        found, what = self.of(factory, spans_key), annotations_of(factory, spans_key)
        if found is None:
            return ""
        if not found.texts:
            return f"none of the {self.texts:,} texts has {what}"
        if LEARNS_FROM[factory] == "categories":
            return self._fault_of_categories(factory, found)
        if not found.labels and LEARNS_FROM[factory] == "spans":
            return "no span has a label"
        if not found.labels:
            return f"the texts are annotated as having no {what}"
        if factory == "parser" and min(self.left_arcs, self.right_arcs) < _LEAST_ARCS:
            arcs = f"{self.left_arcs:,} words before their head and {self.right_arcs:,} after it"
            return f"there are {arcs}, and spaCy's parser needs {_LEAST_ARCS} of each"
        if factory in ("tagger", "morphologizer") and len(found.labels) < 2:
            return f"all {what} are alike, {next(iter(found.labels))!r}"
        if factory == "trainable_lemmatizer" and max(found.labels.values()) < LEAST_CHANGES:
            return f"no change from word to lemma occurs {LEAST_CHANGES} times"
        return ""

    def _fault_of_categories(self, factory: str, found: Found) -> str:
        rest = self.categories
        if rest.between:
            return (
                f"{rest.between:,} of {found.texts:,} texts have categories with values between 0 and 1, which spaCy "
                "refuses: set each to 1 or 0"
            )
        if factory == "textcat":
            if rest.several:
                return (
                    f"{rest.several:,} of {found.texts:,} texts have several categories at once, and textcat expects "
                    "one: use textcat_multilabel"
                )
            if len(rest.names) < 2:
                return "there is one category, and textcat expects at least two: use textcat_multilabel"
            return "" if len(found.labels) > 1 else "no two texts have different categories"
        if not rest.denied:
            return "no text says which categories it does not have: give these the value 0"
        return "" if found.labels else "no text has any of the categories"


def survey(texts: Iterable[Doc | Example]) -> Annotations:
    """Count the annotations of texts. Nothing is changed, and no random number is drawn.

    texts (Iterable): Examples are counted by their reference.
    """
    found = Annotations()
    for text in texts:
        doc = text.reference if isinstance(text, Example) else text
        found.texts += 1
        found.words += len(doc)
        _count_tokens(doc, found)
        _count_categories(doc, found)
        for key, group in doc.spans.items():
            of_key = found.spans.setdefault(key, Found())
            of_key.add(doc, (span.label_ for span in group if span.label_))
            found.span_lengths.setdefault(key, Counter()).update(len(span) for span in group)
    return found


def _count_tokens(doc: Doc, found: Annotations) -> None:
    if not len(doc):
        return
    strings = doc.vocab.strings
    orth, tag, pos, morph, lemma, dep, head, iob, start = numpy.asarray(doc.to_array(list(_COLUMNS))).T

    def add(kind: Kind, is_annotated: bool, labels: Iterable[str]) -> None:
        if is_annotated:
            found.kinds[kind].add(doc, labels)

    add("tags", bool(tag.any()), (strings[int(value)] for value in tag if value))
    add(
        "morphology",
        bool(pos.any() or morph.any()),
        # An empty analysis, "_", is one too.
        (f"{strings[int(a)]} {strings[int(b)]}".strip() for a, b in zip(pos, morph) if a or b),
    )
    add(
        "lemmas",
        bool(lemma.any()),
        ("=" if a == b else f"{strings[int(a)]}>{strings[int(b)]}" for a, b in zip(orth, lemma) if b),
    )
    add("trees", bool(dep.any()), (strings[int(value)] for value in dep if value))
    offsets = head.astype("int64")[dep != 0]
    found.left_arcs += int((offsets > 0).sum())
    found.right_arcs += int((offsets < 0).sum())
    # The first token always starts a sentence.
    add("sentences", bool(start[1:].any()), ("start" for value in start[1:] if value == 1))
    add("entities", bool(iob.any()), (entity.label_ for entity in doc.ents if entity.label_))
    ids = [entity.kb_id_ for entity in doc.ents if entity.kb_id_]
    add("links", bool(ids), ids)


def _count_categories(doc: Doc, found: Annotations) -> None:
    if not doc.cats:
        return
    values, rest = [float(value) for value in doc.cats.values()], found.categories
    held = [name for name, value in doc.cats.items() if value == 1]
    found.kinds["categories"].add(doc, held)
    rest.names.update(doc.cats)
    rest.denied.update(name for name, value in doc.cats.items() if value == 0)
    rest.none += not held
    rest.several += len(held) > 1
    rest.between += any(value not in (0, 1) for value in values)
