"""Find labels that the texts of a training would make a pipeline forget, as they are not annotated there.

Texts with entities or spans say of all other tokens that they are nothing. So texts on which only a new label was
annotated teach that the old ones do not exist.

Only what is learned as "there is none" can conflict. Tokens without annotation, and categories that a text does not
name, are not learned; and a text with one exclusive category is annotated as a whole.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ..core.kinds import kind_in
from ..core.schema import Count
from ..core.words import listed
from .data_check import Corpus
from .filling import COMPLETE

# The pipeline predicts so many texts, for so long at most.
MOST_TEXTS = 200
MOST_SECONDS = 20.0
_BATCH = 20
# Characters of an example.
_LONGEST = 40
# A label is missing if the pipeline finds it at least so often, and this many times as often as the texts have it.
_LEAST_FOUND = 5
_FAR_MORE = 20
_ADVICE = (
    "Let the pipeline as it was fill {they} in: spacy torchopt init --from PIPELINE new.cfg. If the texts have none, "
    "declare {they} as complete there: in 'complete' of [corpora.train]."
)


@dataclass
class ComparedTexts:
    """The counts of a `Comparison`, as a saved state."""

    predicted: Count
    texts: Count
    found: dict[str, dict[str, Count]]
    there: dict[str, dict[str, Count]]


@dataclass
class Comparison:
    """Comparison of the labels that a pipeline finds in texts with their annotations.

    nlp (Language): The pipeline as it was. names (Collection[str]): Its components that the texts will train.

    Public: `components` (those of them that can forget a label); `predicted`, `texts` (that were predicted, and all);
    `found` and `there` (by component, how often each label was predicted where a text has nothing, and annotated in all
    texts); `example` (by component and label, the text of the first prediction).
    """

    nlp: Language
    names: Collection[str]
    predicted: int = 0
    texts: int = 0
    found: dict[str, Counter[str]] = field(default_factory=dict)
    there: dict[str, Counter[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = {name: kind_in(self.nlp, name) for name in self.nlp.pipe_names if name in self.names}
        self._kinds = {name: kind for name, kind in kinds.items() if kind.can_forget and _labels(self.nlp, name)}
        self.components = [*self._kinds]
        self.found = {name: Counter(self.found.get(name)) for name in self.components}
        self.there = {name: Counter(self.there.get(name)) for name in self.components}
        self.example: dict[tuple[str, str], str] = {}

    def predict(self, examples: Sequence[Example], *, needs: Collection[str] = ()) -> None:
        """Let the pipeline predict texts, and compare. No text and no weight is changed.

        needs (Collection[str]): Components whose predictions others need.
        """
        docs = [example.predicted.copy() for example in examples]
        wanted = {*self.components, *needs, *_upstream(self.nlp, self.components)}
        for name, proc in self.nlp.pipeline:
            if name in wanted:
                docs = list(proc.pipe(docs, batch_size=_BATCH) if hasattr(proc, "pipe") else map(proc, docs))
        for doc, example in zip(docs, examples):
            self.add(Example(doc, example.reference))

    def add(self, example: Example) -> None:
        """Compare a text that was predicted."""
        self.predicted += 1
        self.count(example.reference)
        complete = example.reference.user_data.get(COMPLETE, ())
        for name, kind in self._kinds.items() if complete is not True else ():
            own = set(_labels(self.nlp, name))  # others, as entity rulers, write to the same place
            for label, text in kind.denied(example):
                if label in own and label not in complete:
                    self.found[name][label] += 1
                    self.example.setdefault((name, label), text)

    def count(self, reference: Doc) -> None:
        """Count the annotations of a text."""
        self.texts += 1
        for name, kind in self._kinds.items():
            self.there[name].update(kind.labels_in([reference]))

    @property
    def counts(self) -> ComparedTexts:
        """The counts so far. With these as arguments, another one goes on."""
        return ComparedTexts(self.predicted, self.texts, dict(self.found), dict(self.there))

    @property
    def missing(self) -> dict[str, Counter[str]]:
        """By component, how often the pipeline finds the labels that it finds often and the texts never have, or next
        to never. Without components that have no such label.
        """
        share = self.predicted / max(1, self.texts)
        all_found = {}
        for name, found in self.found.items():
            there = self.there[name]
            labels = {
                label: n for label, n in found.items() if n >= _LEAST_FOUND and there[label] * share * _FAR_MORE <= n
            }
            if labels:
                all_found[name] = Counter(labels)
        return all_found

    def tell(self, name: str, labels: Counter[str], told: str, advice: str = _ADVICE) -> str:
        """Missing labels of a component in words.

        told (str): The texts. advice (str): What to do, with {they} for the labels.
        """
        which = [label for label, _ in labels.most_common()]
        where = "" if self.predicted == self.texts else f" in {self.predicted:,} of them"
        few = "next to no" if any(self.there[name][label] for label in which) else "no"
        is_one = len(which) == 1
        found = listed([f"{n:,} {label}" for label, n in labels.most_common()])
        example = next((text for (one, label), text in self.example.items() if one == name and label in labels), "")
        such = f", such as {example[:_LONGEST]!r}" * bool(example)
        return (
            f"'{name}' (trained before): the {told} have {few} {listed(which, 'or')}, where the pipeline finds "
            f"{found}{where}{such}: they will teach it that there {'is none' if is_one else 'are none'}. "
            + advice.format(they="it" if is_one else "them")
        )


def compare(
    nlp: Language, names: Collection[str], examples: Sequence[Example], *, needs: Collection[str] = ()
) -> Comparison:
    """Compare a pipeline's predictions with the annotations of texts, on some of them, within seconds.

    names (Collection[str]): Its components that the texts will train. needs (Collection[str]): Those whose predictions
        they need.
    """
    found = Comparison(nlp, names)
    stride = max(1, -(-len(examples) // MOST_TEXTS))
    looked_at, begin = examples[::stride] if found.components else [], time.monotonic()
    for i in range(0, len(looked_at), _BATCH):
        found.predict(looked_at[i : i + _BATCH], needs=needs)
        if time.monotonic() - begin > MOST_SECONDS:
            break
    for i, example in enumerate(examples):
        if i % stride or i // stride >= found.predicted:
            found.count(example.reference)
    return found


def doubts_of_labels(
    nlp: Language, config: Mapping[str, Any], train: Corpus, sourced: Collection[str]
) -> Iterator[str]:
    """Find labels that a training would make a pipeline forget.

    nlp (Language): The pipeline before the training. config (Mapping): Interpolated.
    sourced (Collection[str]): Components that were trained before.
    """
    training = config["training"]
    frozen = training["frozen_components"]
    trained = [name for name in nlp.pipe_names if name not in frozen]
    complete = set(_declared(config, train.name))
    of_before = [name for name in trained if name in sourced and _was_trained(nlp, name, {*sourced, *frozen})]
    needs = [name for name in training.get("annotating_components", ()) if name in {*sourced, *frozen}]
    with suppress(Exception):  # of a component, which raises the same at the first evaluation
        found = compare(nlp, of_before, train.examples, needs=needs)
        for name, labels in found.missing.items():
            if kept := Counter({label: n for label, n in labels.items() if label not in complete}):
                yield found.tell(name, kept, train.told)


def _labels(nlp: Language, name: str) -> Sequence[str]:
    labels: Sequence[str] = getattr(nlp.get_pipe(name), "labels", ())
    return labels


def _upstream(nlp: Language, names: Collection[str]) -> list[str]:
    """The components that others listen to."""
    return [name for name, proc in nlp.pipeline if set(getattr(proc, "listening_components", ())) & set(names)]


def _was_trained(nlp: Language, name: str, trained: Collection[str]) -> bool:
    """Whether all that a component predicts with was trained before."""
    return name in trained and all(other in trained for other in _upstream(nlp, [name]))


def _declared(config: Mapping[str, Any], corpus: str) -> Iterator[str]:
    """The labels that a corpus declares as annotated completely: `complete` of its reader, or of one within."""
    block: Any = config
    for part in corpus.split("."):
        block = block.get(part, {}) if isinstance(block, Mapping) else {}
    todo = [block]
    while todo:
        one = todo.pop()
        if isinstance(one, Mapping):
            complete = one.get("complete")
            yield from complete if isinstance(complete, (list, tuple)) else ()
            todo += one.values()
