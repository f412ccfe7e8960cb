"""Fill in the labels that texts of a stream leave open: by a teacher, and in texts of the memory by the pipeline as it
is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spacy.language import Language
from spacy.training import Example

from ...core.errors import ConfigError
from ...core.kinds import OneCategory, Rule
from ...core.state import replacing
from ...loop.filling import COMPLETE, Filled, Predicted, fill, rules_for
from ...loop.teacher import Teacher, annotate

TEACHER = "teacher"


class StreamTeacher:
    """The teacher of a stream: the pipeline as it was when labels were added from then on.

    nlp (Language): The pipeline that learns. folder (Path): The output, in which the teacher is: see `keep`.
    RAISES (ConfigError): It is not there.

    Public: `digest` (of its weights), `filled` (what it has filled in, counted).
    """

    def __init__(self, nlp: Language, folder: Path):
        self._nlp = nlp
        self._teacher = Teacher(folder / TEACHER, where="the teacher of the stream")
        self.digest = self._teacher.digest
        self.filled = Filled()

    @staticmethod
    def keep(nlp: Language, folder: Path) -> None:
        """Keep a pipeline as it is now. RAISES (OSError): It can't be written."""
        with replacing(folder / TEACHER) as unfinished:
            nlp.to_disk(unfinished)

    def fill_in(self, examples: Sequence[Example]) -> list[Example]:
        """Fill in what the annotators of texts have left open."""
        # An exclusive category that the teacher lacks may be that of a text without any: the text stays as it is.
        rules = [rule for rule in self._rules() if not isinstance(rule.kind, OneCategory) or rule.knows_all]
        if not rules:
            return list(examples)
        predicted = self._teacher.predict([example.reference for example in examples], rules)
        # Each text comes once.
        self._teacher.forget()
        return [_filled(example, said, rules, self.filled) for example, said in zip(examples, predicted)]

    def _rules(self, teacher: Language | None = None) -> list[Rule]:
        """The rules of a teacher. None: this one. Empty: no component has annotations that can be filled in."""
        try:
            return rules_for(self._nlp, self._teacher.components if teacher is None else teacher)
        except ConfigError:
            return []

    def fill_in_later(
        self, examples: Sequence[Example], n_labels: Sequence[int], added: Sequence[tuple[str, str]]
    ) -> list[Example]:
        """Fill in the labels that came after texts, as the pipeline predicts them now: nobody else knows them.

        n_labels (Sequence[int]): How many of the added labels were there before each text.
        added (Sequence[tuple[str, str]]): Component and label, in their order.
        """
        rules = self._rules(self._nlp) if any(n < len(added) for n in n_labels) else []
        if not rules:
            return list(examples)
        found = []
        for example, said, n in zip(
            examples, annotate(self._nlp, [one.reference for one in examples], rules), n_labels
        ):
            of_text = [
                _of_labels(rule, {label for name, label in added[n:] if name == rule.component}) for rule in rules
            ]
            of_text = [rule for rule in of_text if rule.labels]
            if example.reference.user_data.get(COMPLETE) is True:  # for all labels that there were
                del example.reference.user_data[COMPLETE]
            found.append(_filled(example, said, of_text, Filled()) if of_text else example)
        return found


def _of_labels(rule: Rule, labels: set[str]) -> Rule:
    # Of the others a text says what it says: what is missing there is unknown.
    return replace(rule, labels=(rule.labels or frozenset()) & labels, closes=False)


def _filled(example: Example, said: Predicted, rules: Sequence[Rule], counted: Filled) -> Example:
    return Example(example.predicted, fill(example.reference, said, rules, counted))
