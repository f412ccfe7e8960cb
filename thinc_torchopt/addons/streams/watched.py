"""The score of a watched corpus on old labels and on new ones: forgetting shows in one, learning in the other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ...core.kinds import Categories, OfSpans, OneCategory, Rule, Tags, kind_in
from ...loop.filling import rules_for

_COMPARED = (OfSpans, Categories, Tags)
# An annotation: start and end in characters, which are those of the text for one of all of it, and the label.
_Item = tuple[int, int, str]


def old_and_new(
    nlp: Language, examples: Sequence[Example], added: Mapping[str, Collection[str]]
) -> tuple[float | None, float | None]:
    """The F scores of all annotations with old labels, and of those with new ones, from 0 to 1.

    examples (Sequence[Example]): With the predictions of the pipeline.
    added (Mapping): By component, its new labels. Other components are left out.
    RETURNS (tuple): None: no text has such annotations, nor are any predicted.
    """
    rules = [rule for rule in rules_for(nlp, nlp) if rule.component in added]
    counts = {"old": [0, 0, 0], "new": [0, 0, 0]}  # right, predicted, annotated
    for example in examples:
        for rule in rules:
            right = set(_items(example.reference, rule))
            if not right and not rule.kind.has(example.reference):
                continue
            found = set(_items(example.predicted, rule))
            if isinstance(rule.kind, Categories):  # those that the text does not name are unknown
                found = {item for item in found if item[2] in example.reference.cats}
            for name, items in (("old", False), ("new", True)):
                one, other = ({i for i in all_ if (i[2] in added[rule.component]) is items} for all_ in (found, right))
                for i, n in enumerate((len(one & other), len(one), len(other))):
                    counts[name][i] += n
    old, new = (_f_score(*counts[name]) for name in ("old", "new"))
    return old, new


def _f_score(right: int, predicted: int, annotated: int) -> float | None:
    return 2 * right / (predicted + annotated) if predicted + annotated else None


def _items(doc: Doc, rule: Rule) -> Iterator[_Item]:
    said: Any = rule.theirs.read(doc)
    if isinstance(rule.kind, OfSpans):
        for start, end, label in said:
            yield doc[start].idx, doc[end - 1].idx + len(doc[end - 1]), label
    elif isinstance(rule.kind, Categories):
        scores = {label: score for label, score in said.items() if rule.own is None or label in rule.own}
        best = max(scores, key=lambda label: scores[label], default="")
        for label, score in scores.items():
            if label == best and score > 0 if isinstance(rule.kind, OneCategory) else score >= rule.kind.threshold:
                yield 0, len(doc.text), label
    elif isinstance(rule.kind, Tags):
        for token, tag in zip(doc, said):
            if tag:
                yield token.idx, token.idx + len(token), tag


def added_by_component(added: Sequence[tuple[str, str]], nlp: Language) -> dict[str, set[str]]:
    """Labels that were added, by component: of those whose annotations can be compared one by one."""
    found: dict[str, set[str]] = {}
    for component, label in added:
        if isinstance(kind_in(nlp, component), _COMPARED):
            found.setdefault(component, set()).add(label)
    return found
