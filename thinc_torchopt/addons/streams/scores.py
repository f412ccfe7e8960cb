"""Scores of texts: of those before they are learned, and of a watched corpus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from spacy.language import Language
from spacy.scorer import Scorer
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.vocab import Vocab

from ...core.errors import StreamError
from ...core.kinds import Categories, kind_in
from .records import in_words, read_examples
from .watched import added_by_component, old_and_new

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

    def score(self, examples: Iterable[Example], *, per_component: bool = False) -> dict[str, Any]:
        self.examples = list(examples)
        with_cats = [example for example in self.examples if example.reference.cats]
        found = super().score(self.examples, per_component=True)
        if len(with_cats) < len(self.examples):
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
