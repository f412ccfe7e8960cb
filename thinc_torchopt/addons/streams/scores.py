"""Scores of texts: of those before they are learned, and of a watched corpus."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from spacy.language import Language
from spacy.scorer import Scorer
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.vocab import Vocab

from ...core.errors import StreamError
from ...core.kinds import Categories, OfSpans, OneCategory, Rule, Tags, kind_in
from ...loop.filling import rules_for
from .records import in_words, read_examples

_OF_TOKENS = ["ORTH", "SPACY", "TAG", "POS", "MORPH", "LEMMA", "ENT_IOB", "ENT_TYPE", "ENT_KB_ID", "ENT_ID"]


def pack(examples: Sequence[Example]) -> list[torch.Tensor]:
    """Scored texts in spaCy's binary format, as predicted and as they should be: a memory zone frees their words."""
    packed = []
    for docs in ([one.predicted for one in examples], [one.reference for one in examples]) if examples else ():
        has_deps = any(doc.has_annotation("DEP") for doc in docs)
        binary = DocBin(attrs=[*_OF_TOKENS, *(("HEAD", "DEP") if has_deps else ("SENT_START",))], docs=docs)
        packed.append(torch.from_numpy(numpy.frombuffer(binary.to_bytes(), dtype="uint8").copy()))
    return packed


def unpack(packed: Sequence[torch.Tensor], vocab: Vocab) -> list[Example]:
    """Texts that were packed, in another zone. vocab (Vocab): The pipeline's."""
    predicted, reference = (DocBin().from_bytes(one.numpy().tobytes()).get_docs(vocab) for one in packed)
    return [Example(doc, gold) for doc, gold in zip(predicted, reference)]


class StreamScores:
    """Scores texts.

    nlp (Language): The pipeline. weights (Mapping): By score, what it counts.
    """

    def __init__(self, nlp: Language, weights: Mapping[str, float | None]):
        self._nlp = nlp
        self._weights = {name: weight for name, weight in weights.items() if weight}

    def of(self, examples: Sequence[Example]) -> dict[str, float]:
        """The scores of texts with predictions. RAISES (Exception): A scorer's."""
        return _numbers(_Scorer(self._nlp).score(examples))

    def of_corpus(
        self, path: Path, added: Sequence[tuple[str, str]]
    ) -> tuple[dict[str, float], float | None, float | None]:
        """The scores of a corpus, and those on old labels and on new ones.

        added (Sequence[tuple[str, str]]): Component and label, for the new ones.
        RAISES (StreamError): It can't be read or evaluated.
        """
        try:
            examples = [example for _, example in read_examples(self._nlp, path)]
            scorer = _Scorer(self._nlp)
            scores = _numbers(self._nlp.evaluate(examples, scorer=scorer))
            new = added_by_component(added, self._nlp)
            return (scores, *(old_and_new(self._nlp, scorer.examples, new) if new else (None, None)))
        except StreamError:
            raise
        except Exception as error:
            raise StreamError(f"Can't evaluate '{path}' of --watch: {in_words(error)}") from error

    def total(self, scores: Mapping[str, float]) -> float | None:
        """The weighted mean of scores, as in `spacy train`. Those that are unknown don't count. None: all are."""
        known = {name: weight for name, weight in self._weights.items() if name in scores}
        if not known:
            return None
        share = sum(known.values()) / sum(self._weights.values())
        return sum(scores[name] * weight for name, weight in known.items()) / share


class _Scorer(Scorer):
    """spaCy's scorer, which scores categories on texts that have some: else, all that is found in others is wrong. It
    keeps the texts with their predictions: `Language.evaluate` copies what it gets.

    nlp (Language): The pipeline.

    Public: `examples`.
    SOURCE: spacy/scorer.py, `score_cats`; spans are scored on texts that have some.
    """

    def __init__(self, nlp: Language):
        super().__init__(nlp=nlp)
        self.examples: list[Example] = []

    def score(self, examples: Iterable[Example], **settings: Any) -> dict[str, Any]:
        self.examples = list(examples)
        with_cats = [example for example in self.examples if example.reference.cats]
        found = super().score(self.examples, per_component=True)
        for name, pipe in self.nlp.pipeline:
            if name in found and isinstance(kind_in(self.nlp, name), Categories):
                found[name] = pipe.score(with_cats) if with_cats else {}  # type: ignore[attr-defined]
        return {key: value for scores in found.values() for key, value in scores.items()}


def _numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    """Those scores that are numbers. `speed` differs from run to run."""
    return {
        name: float(value)
        for name, value in scores.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "speed"
    }


_COMPARED = (OfSpans, Categories, Tags)
# An annotation: its place in characters, which is that of the text for one of all of it, and the label.
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
            yield doc[start:end].start_char, doc[start:end].end_char, label
    elif isinstance(rule.kind, Categories):
        scores = {label: score for label, score in said.items() if rule.own is None or label in rule.own}
        best = max(scores, key=lambda label: scores[label], default="")
        for label, score in scores.items():
            if label == best and score > 0 if isinstance(rule.kind, OneCategory) else score >= rule.kind.threshold:
                yield 0, len(doc.text), label
    elif isinstance(rule.kind, Tags):
        for token, tag in zip(doc, said):
            if tag:
                yield token.idx, len(token), tag


def added_by_component(added: Sequence[tuple[str, str]], nlp: Language) -> dict[str, set[str]]:
    """Labels that were added, by component: of those whose annotations can be compared one by one."""
    found: dict[str, set[str]] = {}
    for component, label in added:
        if isinstance(kind_in(nlp, component), _COMPARED):
            found.setdefault(component, set()).add(label)
    return found
