"""Kinds of components that find spans of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from spacy.attrs import ENT_IOB, ENT_TYPE
from spacy.tokens import Doc, Span
from spacy.training import Example

from .kind import Found, Kind, Rule
from .words import column, names, put

# Values of ENT_IOB. Missing is 0. SOURCE: spacy/tokens/token.pyx, `iob_strings`.
_INSIDE, _OUTSIDE, _BEGIN = 1, 2, 3


class OfSpans(Kind):
    """Spans of a text: of entities, or under a key."""

    has_labels = is_filled = fills_labels = can_forget = True

    def spans(self, doc: Doc) -> Sequence[Span]:
        """The spans of a text."""
        raise NotImplementedError

    def in_text(self, doc: Doc) -> list[str] | None:
        return [span.label_ for span in self.spans(doc)] if self.has(doc) else None

    def has_some(self, found: Found) -> bool:
        return bool(found.labels)

    def read(self, doc: Doc) -> list[tuple[int, int, str]]:
        return [(one.start, one.end, one.label_) for one in self.spans(doc)]

    def fits(self, said: Any, n: int) -> bool:
        return all(0 <= start < end <= n and isinstance(label, str) for start, end, label in said)

    def denied(self, example: Example) -> Iterator[tuple[str, str]]:
        aligned, reference = example.alignment.x2y, example.reference
        for span in self.spans(example.predicted):
            tokens = [int(i) for i in aligned[span.start : span.end].data]
            if tokens and self._denies(reference, min(tokens), max(tokens) + 1, tokens):
                yield span.label_, span.text

    def _denies(self, reference: Doc, start: int, end: int, tokens: Iterable[int]) -> bool:
        """Whether an annotation says that there is none."""
        raise NotImplementedError


class Entities(OfSpans):
    name, factories, keys = "entities", ("ner", "beam_ner"), ("entities",)

    def spans(self, doc: Doc) -> Sequence[Span]:
        return doc.ents

    def has(self, doc: Doc) -> bool:
        return bool(column(doc, ENT_IOB).any())

    def _denies(self, reference: Doc, start: int, end: int, tokens: Iterable[int]) -> bool:
        # If nobody said anything, nothing is denied. Another entity in its place: a label of another name.
        return all(reference[i].ent_iob == _OUTSIDE for i in tokens)

    def fill(self, doc: Doc, said: Any, rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
        iob, types, labels = column(doc, ENT_IOB), column(doc, ENT_TYPE), names(doc, ENT_TYPE)
        annotated = set(self.read(doc))
        # A token that is "blocked", known to be no part of an entity, begins one without a label.
        taken = (iob == _INSIDE) | (iob == _BEGIN)
        # Those that an annotator calls incorrect; without a label, for all labels.
        incorrect = doc.spans.get(self.settings.get("incorrect_spans_key") or "", ())
        refused = {(one.start, one.end, one.label_) for one in incorrect}
        for start, end, label in said:
            if (start, end, label) in annotated:
                continue
            if taken[start:end].any():
                conflicts[label] += not rule.stands_for(labels[start:end], label)
            elif refused & {(start, end, label), (start, end, "")} or label in rule.complete:
                conflicts[label] += 1
            elif rule.may_fill(label):
                iob[start], iob[start + 1 : end] = _BEGIN, _INSIDE
                types[start:end] = doc.vocab.strings.add(label)
                if end < len(doc) and iob[end] == _INSIDE:
                    iob[end] = _BEGIN  # an annotated entity begins here, and goes on being one of its own
                filled[label] += 1
        if rule.closes:
            iob[iob == 0] = _OUTSIDE
        put(doc, [ENT_IOB, ENT_TYPE], iob, types)
        return True

    def leave_open(self, doc: Doc) -> None:
        """Only entities say of a token that it is none: tokens outside of them become missing, from which a component
        learns nothing.

        SOURCE: spacy/pipeline/_parser_internals/ner.pyx: every move costs nothing at a missing token.
        """
        iob, types = column(doc, ENT_IOB), column(doc, ENT_TYPE)
        iob[iob == _OUTSIDE] = 0
        put(doc, [ENT_IOB, ENT_TYPE], iob, types)


class Links(Kind):
    """Of entities, to a knowledge base."""

    name, factories, keys = "links", ("entity_linker",), ("links",)
    _words = "entities with an id of the knowledge base"

    def needs(self, component: str) -> str:
        return (
            "It learns from entities of its texts whose ids the knowledge base has. Set use_gold_ents = true in "
            f"[components.{component}], or add a component that sets entities to annotating_components in [training]."
        )

    def in_text(self, doc: Doc) -> list[str] | None:
        return [entity.kb_id_ for entity in doc.ents if entity.kb_id_] or None


@dataclass
class FoundSpans(Found):
    """lengths (Counter[int]): How many spans have how many tokens."""

    lengths: Counter[int] = field(default_factory=Counter)


class Spans(OfSpans):
    """Under a key, with labels."""

    name, factories, keys = "spans", ("spancat",), ("spans",)
    found = FoundSpans
    is_nothing_without = True

    @property
    def key(self) -> str:
        return str(self.settings.get("spans_key", "sc"))

    @property
    def place(self) -> str:
        return f"spans/{self.key}"

    @property
    def in_words(self) -> str:
        return f"spans under the key '{self.key}'"

    def needs(self, component: str) -> str:
        return (
            "Its suggester proposes no spans. If they come from another component, such as a span_finder, add that to "
            "annotating_components in [training]."
        )

    def spans(self, doc: Doc) -> Sequence[Span]:
        return tuple(doc.spans.get(self.key, ()))

    def has(self, doc: Doc) -> bool:
        return self.key in doc.spans

    def count(self, doc: Doc, found: Any) -> None:
        super().count(doc, found)
        found.lengths.update(map(len, self.spans(doc)))

    def fault(self, found: Found) -> str:
        return "" if found.labels else "no span has a label"

    def _denies(self, reference: Doc, start: int, end: int, tokens: Iterable[int]) -> bool:
        return (start, end) not in {(one.start, one.end) for one in self.spans(reference)}

    def fill(self, doc: Doc, said: Any, rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
        group = self.spans(doc)
        annotated, new = self.read(doc), list[Span]()
        seen = set(annotated)
        for start, end, label in said:
            if (start, end, label) in seen:
                continue
            there = [name for first, last, name in annotated if first < end and start < last]
            if there or label in rule.complete:
                conflicts[label] += not rule.stands_for(there, label)
            elif rule.may_fill(label):
                seen.add((start, end, label))
                new.append(Span(doc, start, end, label=label))
                filled[label] += 1
        doc.spans[self.key] = [*group, *new]
        return True


class SpansOfOneLabel(Spans):
    """Under a key; no span has two labels."""

    factories = ("spancat_singlelabel",)


class BareSpans(Spans):
    """Under a key, with or without labels, which are not learned."""

    factories = ("span_finder",)
    has_labels = fills_labels = can_forget = False

    def needs(self, component: str) -> str:
        return Kind.needs(self, component)

    def has_some(self, found: Any) -> bool:
        return bool(found.lengths)

    def fault(self, found: Any) -> str:
        return "" if found.lengths else "there is no span"
