"""Find labels that the texts of a training would make a pipeline forget, or not learn, as they are not annotated there.

Texts with entities or spans say of all other tokens that they are nothing. So texts on which only a new label was
annotated teach that the old ones do not exist, and so do parts of a corpus that were annotated for different labels.

Only what is learned as "there is none" can conflict. Tokens without annotation, and categories that a text does not
name, are not learned; and a text with one exclusive category is annotated as a whole.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from math import exp, lgamma
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..core.annotations import LEARNS_FROM
from ..core.schema import Count
from ..core.words import count, listed
from .data_check import Corpus
from .filling import COMPLETE

# The pipeline predicts so many texts, for so long at most.
MOST_TEXTS = 200
MOST_SECONDS = 20.0
# Words of a corpus that are searched for labels that are missing there.
MOST_WORDS = 200_000
_BATCH = 20
# A label is missing if the pipeline finds it at least so often, and this many times as often as the texts have it.
_LEAST_FOUND = 5
_FAR_MORE = 20
# Two labels exclude each other if chance would keep them apart as well in fewer of so many corpora, and if they are
# together in at most this share of the texts with the rarer one.
_BY_CHANCE = 1e-6
_TOGETHER = 0.02
# Words that have a label wherever others have it too, and none in texts without that label: how many of them, how many
# different ones, how often where they have it, and the rate per text compared to texts with the label. Topics can keep
# two labels apart, but then the words of one are rare in the texts of the other.
_LEAST_OPEN, _LEAST_FORMS = 5, 3
_USUALLY = 0.8
_LEAST_RATE = 0.1
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
    texts).
    """

    nlp: Language
    names: Collection[str]
    predicted: int = 0
    texts: int = 0
    found: dict[str, Counter[str]] = field(default_factory=dict)
    there: dict[str, Counter[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.components = [name for name in self.nlp.pipe_names if name in self.names and _forgets(self.nlp, name)]
        self.found = {name: Counter(self.found.get(name)) for name in self.components}
        self.there = {name: Counter(self.there.get(name)) for name in self.components}

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
        for name in self.components if complete is not True else ():
            pipe: Any = self.nlp.get_pipe(name)
            own = set(pipe.labels)  # others, as entity rulers, write to the same place
            denied = _denied(example, *_kind_of(self.nlp, name), pipe)
            self.found[name].update(label for label in denied if label in own and label not in complete)

    def count(self, reference: Doc) -> None:
        """Count the annotations of a text."""
        self.texts += 1
        for name in self.components:
            self.there[name].update(_labels_in(reference, *_kind_of(self.nlp, name)))

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
        return (
            f"'{name}' (trained before): the {told} have {few} {listed(which, 'or')}, where the pipeline finds "
            f"{labels.total():,}{where}: they will teach it that there {'is none' if is_one else 'are none'}. "
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
    """Find labels that a training would make a pipeline forget, or keep it from learning.

    nlp (Language): The pipeline before the training. config (Mapping): Interpolated.
    sourced (Collection[str]): Components that were trained before.
    """
    training = config["training"]
    frozen = training["frozen_components"]
    trained = [name for name in nlp.pipe_names if name not in frozen]
    complete = set(_declared(config, train.name))
    of_before = [name for name in trained if name in sourced and _was_trained(nlp, name, {*sourced, *frozen})]
    needs = [name for name in training.get("annotating_components", ()) if name in {*sourced, *frozen}]
    missing = {}
    with suppress(Exception):  # of a component, which raises the same at the first evaluation
        found = compare(nlp, of_before, train.examples, needs=needs)
        missing = found.missing
    for name, labels in missing.items():
        if kept := Counter({label: n for label, n in labels.items() if label not in complete}):
            yield found.tell(name, kept, train.told)
    for name in trained:
        if name not in missing:
            yield from _parts(nlp, name, train, complete)


# ---------------------------------------------------------------------- parts of one corpus


def _parts(nlp: Language, name: str, train: Corpus, complete: Collection[str]) -> Iterator[str]:
    """Find labels that were annotated in one part of a corpus only, and others in another part only."""
    kind, key = _kind_of(nlp, name)
    if kind not in ("entities", "spans"):
        return
    docs = [example.reference for example in train.part(MOST_WORDS)]
    if kind == "entities":
        docs = [doc for doc in docs if doc.has_annotation("ENT_IOB")]
    held = [set(_labels_in(doc, kind, key)) for doc in docs]
    apart = _apart(held)
    worst: tuple[int, str, list[str], list[str]] | None = None
    for label, others in apart.items():
        if label in complete:
            continue
        open_forms = _open_forms(docs, held, label, others, kind, key)
        n = open_forms.total()
        if n >= _LEAST_OPEN and len(open_forms) >= _LEAST_FORMS and (worst is None or n > worst[0]):
            worst = n, label, sorted(others), [form for form, _ in open_forms.most_common(3)]
    if worst is None:
        return
    n, label, apart_from, forms = worst
    with_label = sum(label in one for one in held)
    with_others = sum(bool(one & set(apart_from)) and label not in one for one in held)
    yield (
        f"'{name}': parts of [{train.name}] seem to be annotated for different labels. {count(with_label, 'text')} "
        f"have {listed([label])}, and {with_others:,} others {listed(apart_from, 'or')}. In those, {count(n, 'place')} "
        f"without a label have words that are {listed([label])} elsewhere "
        f"({', '.join(repr(form) for form in forms)}). So each part teaches that the labels of the other are wrong. "
        "Train on one part, then on the other with spacy torchopt init --from PIPELINE new.cfg."
    )


def _apart(held: Sequence[set[str]]) -> dict[str, set[str]]:
    """The labels that are kept apart by more than chance, each with those that it is kept from.

    held (Sequence[set[str]]): The labels of each text.
    """
    alone = Counter(label for labels in held for label in labels)
    together = Counter(pair for labels in held for pair in combinations(sorted(labels), 2))
    found: dict[str, set[str]] = {}
    for one, other in combinations(sorted(alone), 2):
        both, rarer = together[one, other], min(alone[one], alone[other])
        if both <= _TOGETHER * rarer and _at_most(both, alone[one], alone[other], len(held)) < _BY_CHANCE:
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)
    return found


def _at_most(both: int, a: int, b: int, n: int) -> float:
    """The probability that two random sets of `a` and `b` of `n` texts have at most `both` in common: the
    hypergeometric distribution.
    """

    def log_binomial(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    least = max(0, a + b - n)
    return sum(
        exp(log_binomial(a, k) + log_binomial(n - a, b - k) - log_binomial(n, b)) for k in range(least, both + 1)
    )


def _open_forms(
    docs: Sequence[Doc], held: Sequence[set[str]], label: str, others: set[str], kind: str, key: str
) -> Counter[str]:
    """Words that have a label wherever texts with it have them, and none in texts with the others: how often. Empty:
    fewer than topics could explain.
    """
    own = [doc for doc, labels in zip(docs, held) if label in labels]
    rest = [doc for doc, labels in zip(docs, held) if label not in labels and labels & others]
    labelled = Counter(_form(span) for doc in own for span in _spans_in(doc, kind, key) if span.label_ == label)
    by_first: dict[str, set[tuple[str, ...]]] = {}
    for form in labelled:
        by_first.setdefault(form[0], set()).add(form)
    seen = Counter(form for doc in own for form, _, _ in _occurrences(doc, by_first))
    kept = {form for form, n in labelled.items() if n > 1 and n >= _USUALLY * seen[form]}
    found: Counter[str] = Counter()
    for doc in rest:
        marked = {i for span in _spans_in(doc, kind, key) for i in range(span.start, span.end)}
        missing = {token.i for token in doc if not token.ent_iob} if kind == "entities" else set()
        for form, start, end in _occurrences(doc, by_first):
            if form in kept and not (marked | missing) & set(range(start, end)):
                found[" ".join(form)] += 1
    usual = sum(labelled[form] for form in kept) / max(1, len(own))
    return found if found.total() >= _LEAST_RATE * usual * len(rest) else Counter()


def _form(span: Span) -> tuple[str, ...]:
    return tuple(token.text for token in span)


def _occurrences(
    doc: Doc, by_first: Mapping[str, Collection[tuple[str, ...]]]
) -> Iterator[tuple[tuple[str, ...], int, int]]:
    words = [token.text for token in doc]
    for i, word in enumerate(words):
        for form in by_first.get(word, ()):
            if tuple(words[i : i + len(form)]) == form:
                yield form, i, i + len(form)


# ---------------------------------------------------------------------- components and annotations


def _kind_of(nlp: Language, name: str) -> tuple[str, str]:
    """Kind of annotations by which a component can forget a label, or "", and the key of its spans."""
    factory = nlp.get_pipe_meta(name).factory
    kind = LEARNS_FROM.get(factory, "")
    can_forget = kind in ("entities", "spans") or factory == "textcat_multilabel"
    return (kind if can_forget else "", str(getattr(nlp.get_pipe(name), "key", "") or ""))


def _forgets(nlp: Language, name: str) -> bool:
    return bool(_kind_of(nlp, name)[0]) and bool(getattr(nlp.get_pipe(name), "labels", ()))


def _upstream(nlp: Language, names: Collection[str]) -> list[str]:
    """The components that others listen to."""
    return [name for name, proc in nlp.pipeline if set(getattr(proc, "listening_components", ())) & set(names)]


def _was_trained(nlp: Language, name: str, trained: Collection[str]) -> bool:
    """Whether all that a component predicts with was trained before."""
    return name in trained and all(other in trained for other in _upstream(nlp, [name]))


def _spans_in(doc: Doc, kind: str, key: str) -> Sequence[Span]:
    return doc.ents if kind == "entities" else tuple(doc.spans.get(key, ()))


def _labels_in(doc: Doc, kind: str, key: str) -> Iterator[str]:
    """The label of each annotation of a text."""
    if kind == "categories":
        yield from (label for label, value in doc.cats.items() if value >= 0.5)
    else:
        yield from (span.label_ for span in _spans_in(doc, kind, key))


def _denied(example: Example, kind: str, key: str, pipe: Any) -> Iterator[str]:
    """The labels of predictions that an annotation says are none."""
    reference = example.reference
    if kind == "categories":
        threshold = pipe.cfg.get("threshold", 0.5) if hasattr(pipe, "cfg") else 0.5
        predicted = example.predicted.cats
        yield from (
            label for label, value in reference.cats.items() if not value and predicted.get(label, 0) >= threshold
        )
        return
    spans = _spans_in(example.predicted, kind, key)
    if not spans:
        return
    aligned = example.alignment.x2y
    marked = {(span.start, span.end) for span in _spans_in(reference, kind, key)}
    for span in spans:
        tokens = [int(i) for i in aligned[span.start : span.end].data]
        if not tokens:
            continue
        if kind == "entities":
            # 2: outside of entities. 0: nobody said anything. Another entity in its place: a label of another name.
            is_denied = all(reference[i].ent_iob == 2 for i in tokens)
        else:
            is_denied = (min(tokens), max(tokens) + 1) not in marked
        if is_denied:
            yield span.label_


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
