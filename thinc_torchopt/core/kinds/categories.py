"""Kinds of components that give a text categories."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from spacy.tokens import Doc
from spacy.training import Example

from .kind import Found, Kind, Rule


@dataclass
class FoundCategories(Found):
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


class Categories(Kind):
    """Any number of them holds."""

    name, factories, keys = "categories", ("textcat_multilabel",), ("cats",)
    found = FoundCategories
    has_labels = is_filled = fills_labels = can_forget = True
    of_unknown = "spaCy ignores {it}"

    @property
    def threshold(self) -> float:
        """From this score on, one holds."""
        found = self.settings.get("threshold")
        return 0.5 if found is None else float(found)

    def in_text(self, doc: Doc) -> list[str] | None:
        return [name for name, value in doc.cats.items() if value == 1] if doc.cats else None

    def count(self, doc: Doc, found: Any) -> None:
        super().count(doc, found)
        found.names.update(doc.cats)
        found.in_texts.update(dict.fromkeys(doc.cats, 0))  # it knows a label that no text has
        found.denied.update(name for name, value in doc.cats.items() if value == 0)
        if doc.cats:
            held = sum(value == 1 for value in doc.cats.values())
            found.none += not held
            found.several += held > 1
            found.between += any(value not in (0, 1) for value in doc.cats.values())

    def labels_in(self, docs: Iterable[Doc]) -> Counter[str]:
        found: Counter[str] = Counter()
        for doc in docs:
            for label, value in doc.cats.items():
                found[label] += value >= 0.5  # it knows a label that no text has
        del found[""]
        return found

    def fault(self, found: Any) -> str:
        if found.between:
            return (
                f"{found.between:,} of {found.texts:,} texts have categories with values between 0 and 1, which spaCy "
                "refuses: set each to 1 or 0"
            )
        return self._fault(found)

    def _fault(self, found: FoundCategories) -> str:
        if not found.denied:
            return "no text says which categories it does not have: give these the value 0"
        return "" if found.labels else "no text has any of the categories"

    def read(self, doc: Doc) -> dict[str, float]:
        return {label: float(score) for label, score in doc.cats.items()}

    def fits(self, said: Any, n: int) -> bool:
        return all(math.isfinite(score) for score in said.values())

    def fill(self, doc: Doc, said: Any, rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
        assert isinstance(rule.theirs, Categories)
        taught = {label: score for label, score in said.items() if rule.labels is None or label in rule.labels}
        held = [label for label, value in doc.cats.items() if value >= 0.5]
        is_open = False
        for label, score in taught.items():
            holds = score >= rule.theirs.threshold
            if label in doc.cats:
                conflicts[label] += holds != (doc.cats[label] >= 0.5)
            elif label in rule.complete:
                conflicts[label] += holds
            else:
                holds = holds and not rule.stands_for(held, label)
                doc.cats[label], is_open = float(holds), True
                filled[label] += holds
        return is_open

    def has_open(self, doc: Doc, labels: Collection[str]) -> bool:
        return bool(set(labels) - set(doc.cats))

    def denied(self, example: Example) -> Iterator[tuple[str, str]]:
        scores = example.predicted.cats
        for label, value in example.reference.cats.items():
            if not value and scores.get(label, 0) >= self.threshold:
                yield label, example.text


class OneCategory(Categories):
    """Exactly one holds."""

    factories = ("textcat",)
    is_nothing_without = True
    can_forget = False

    def _fault(self, found: FoundCategories) -> str:
        if found.several:
            return (
                f"{found.several:,} of {found.texts:,} texts have several categories at once, and textcat expects one: "
                "use textcat_multilabel"
            )
        if len(found.names) < 2:
            return "there is one category, and textcat expects at least two: use textcat_multilabel"
        return "" if len(found.labels) > 1 else "no two texts have different categories"

    def fill(self, doc: Doc, said: Any, rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
        # Another component of the teacher may give the text categories too.
        scores = {label: score for label, score in said.items() if rule.taught is None or label in rule.taught}
        if not scores:
            return False
        best = max(scores, key=lambda label: scores[label])
        named = [label for label in doc.cats if rule.own is None or label in rule.own]
        if named:
            held = [label for label in named if doc.cats[label] >= 0.5]
            conflicts[best] += bool(held) and best not in held and not rule.stands_for(held, best)
            return False
        if best in rule.complete:
            conflicts[best] += 1
            return False
        if not rule.may_fill(best):  # no other label holds
            return True
        doc.cats = {**doc.cats, **{label: float(label == best) for label in rule.own or scores}}
        filled[best] += 1
        return True

    def has_open(self, doc: Doc, labels: Collection[str]) -> bool:
        return not doc.cats
