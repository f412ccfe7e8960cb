"""Which components the texts of a stream teach, and what is filled in where they leave labels open: by a teacher, and
in texts of the memory by the pipeline as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spacy.language import Language
from spacy.training import Example

from ...core.errors import ConfigError, StreamError
from ...core.kinds import OneCategory, Rule, kind_in
from ...core.schema import Count
from ...core.state import replacing
from ...core.words import count, listed
from ...loop.components import is_trained
from ...loop.filling import COMPLETE, Filled, Predicted, fill, rules_for
from ...loop.teacher import Teacher, annotate


@dataclass
class AnnotatedTexts:
    """The texts since the stream began, or since its last end.

    texts (int): All of them. bare (int): Those without annotations for any component.
    components (dict[str, int]): By component, how many texts have annotations for it.
    unused (dict[str, int]): By key that is not used, how many texts have it.
    """

    texts: Count = 0
    bare: Count = 0
    components: dict[str, Count] = field(default_factory=dict)
    unused: dict[str, Count] = field(default_factory=dict)

    def add(self, components: Collection[str], unused: Collection[str]) -> None:
        """Count a text. components: Those that it has annotations for. unused: Its keys that are not used."""
        self.texts += 1
        self.bare += not components
        for counts, names in ((self.components, components), (self.unused, unused)):
            for name in names:
                counts[name] = counts.get(name, 0) + 1


class Teaches:
    """Tells which components learn from a text.

    nlp (Language): The pipeline. names (Collection[str]): Its components that are trained.
    """

    def __init__(self, nlp: Language, names: Collection[str]):
        trained = {name: kind_in(nlp, name) for name, pipe in nlp.pipeline if name in names and is_trained(pipe)}
        self._known = {name: kind for name, kind in trained.items() if kind.is_known}
        # Those that others listen to learn with them. What any other one learns from is not known.
        self._knows_all = all(name in self._known or hasattr(nlp.get_pipe(name), "listener_map") for name in trained)

    def components(self, example: Example) -> list[str]:
        """The components that a text has annotations for."""
        return [name for name, kind in self._known.items() if kind.has(example.reference)]

    def in_vain(self, found: AnnotatedTexts) -> bool:
        """Whether nothing was learned from any of the texts."""
        return self._knows_all and 0 < found.texts == found.bare

    def check(self, found: AnnotatedTexts) -> None:
        """RAISES (StreamError): Nothing was learned from any of the texts."""
        if self.in_vain(found):
            wanted = listed([f"'{name}' ({kind.in_words})" for name, kind in self._known.items()], "or")
            keys = listed([f"'{key}'" for kind in self._known.values() for key in kind.keys], "or")
            raise StreamError(
                f"Can't learn from the stream: expected annotations for {wanted}, found none in "
                f"{count(found.texts, 'text')}.{_told(found)} Give them under the keys of spaCy's Example.from_dict, "
                f"{keys}. Nothing of these texts is saved: repair them, and run the same command."
            )

    def doubts(self, found: AnnotatedTexts) -> Iterator[str]:
        """The texts and components that were in vain, in words."""
        if found.bare:
            yield (
                f"{found.bare:,} of {count(found.texts, 'text')} have no annotations for any component: nothing was "
                f"learned from them.{_told(found)}"
            )
        for name, kind in self._known.items():
            if found.texts > found.bare and not found.components.get(name):
                yield f"'{name}' has learned nothing: {count(found.texts, 'text')} without {kind.in_words}."


def _told(found: AnnotatedTexts) -> str:
    """The keys that are not used, with what they may be."""
    told = [f"'{key}' in {count(n, 'text')}" for key, n in sorted(found.unused.items(), key=lambda item: -item[1])[:3]]
    return f" Not used: {', '.join(told)}." if told else ""


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
