"""Kinds of components that learn something of each word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar, Final

import numpy
from spacy.attrs import DEP, HEAD, LEMMA, MORPH, ORTH, POS, SENT_START, TAG
from spacy.morphology import Morphology as _Morphology
from spacy.pipeline import Morphologizer
from spacy.tokens import Doc

from .kind import Found, Kind, Rule

# A lemmatizer learns a change from form to lemma that is this frequent. SOURCE: spaCy's default for min_tree_freq.
LEAST_CHANGES: Final = 3
# A parser learns no transition that is rarer. SOURCE: spaCy's default for min_action_freq.
LEAST_ACTIONS: Final = 30
# With fewer arcs to either side, a parser has no actions for them, and its training stops with E1031. SOURCE:
# spacy/pipeline/_parser_internals/arc_eager.pyx, `get_actions`, which counts shifts and reductions from 1.
_LEAST_ARCS: Final = LEAST_ACTIONS - 1


def column(doc: Doc, attr: int) -> numpy.ndarray:
    """An attribute of each token, as a copy. Shape: (len(doc),)."""
    return numpy.asarray(doc.to_array([attr])).reshape(len(doc)).astype("uint64")


def names(doc: Doc, attr: int) -> list[str]:
    """The same as texts. Empty: it is not set."""
    keys = column(doc, attr).tolist()
    known = {key: doc.vocab.strings[int(key)] if key else "" for key in set(keys)}
    return [known[key] for key in keys]


def put(doc: Any, attrs: Sequence[int], *columns: numpy.ndarray) -> None:
    """Write columns."""
    doc.from_array(list(attrs), numpy.stack([values.astype("uint64") for values in columns], axis=1))


class _OfWords(Kind):
    """Each token has a label, in one or several columns."""

    is_of_each_word = True
    is_filled = True
    _columns: ClassVar[tuple[int, ...]] = ()

    def in_text(self, doc: Doc) -> list[str] | None:
        return [label for label in self._labels(doc) if label] or None

    def _labels(self, doc: Doc) -> list[str]:
        """The label of each token. Empty: it is open."""
        return names(doc, self._columns[0])

    def _label(self, said: Any) -> str:
        """The label of a prediction."""
        return str(said)

    def _counted(self, label: str) -> str:
        """As what a label is counted."""
        return label

    def fault(self, found: Found) -> str:
        if self.fills_labels and len(found.labels) == 1:
            return f"all {self.in_words} are alike, {next(iter(found.labels))!r}"
        return super().fault(found)

    def read(self, doc: Doc) -> Any:
        return names(doc, self._columns[0])

    def fits(self, said: Any, n: int) -> bool:
        return _are_labels(said, n)

    def fill(self, doc: Doc, said: Any, rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
        columns = [column(doc, attr) for attr in self._columns]
        there = self._labels(doc)
        for i, (annotated, predicted) in enumerate(zip(there, map(self._label, said))):
            label = self._counted(predicted)
            if annotated:
                differs = predicted and annotated != predicted and not rule.stands_for([annotated], predicted)
                conflicts[label] += bool(differs)
            elif label in rule.complete:
                conflicts[label] += 1
            elif predicted and rule.may_fill(label):
                filled[label] += 1
                for values, text in zip(columns, [said[i]] if isinstance(said[i], str) else said[i]):
                    values[i] = doc.vocab.strings.add(text) if text else 0
        put(doc, self._columns, *columns)
        return not all(there)

    def has_open(self, doc: Doc, labels: Collection[str]) -> bool:
        return not all(self._labels(doc))


def _are_labels(said: Any, n: int) -> bool:
    return len(said) == n and all(isinstance(label, str) for label in said)


class Tags(_OfWords):
    name, factories, keys = "tags", ("tagger",), ("tags",)
    has_labels = fills_labels = True
    _columns = (TAG,)


class Morphology(_OfWords):
    """Coarse parts of speech and features: labels such as "Number=Sing|POS=NOUN"."""

    name, factories, keys = "morphology", ("morphologizer",), ("pos", "morphs")
    _words = "morphological features"
    has_labels = fills_labels = True
    of_unknown = "spaCy ignores {it}"
    _columns = (POS, MORPH)

    def _labels(self, doc: Doc) -> list[str]:
        return [*map(_joined, names(doc, POS), names(doc, MORPH))]

    def _label(self, said: Any) -> str:
        return _joined(*said)

    def labels_in(self, docs: Any) -> Counter[str] | None:
        found = super().labels_in(docs)
        assert found is not None
        del found[_Morphology.EMPTY_MORPH]
        return found

    def read(self, doc: Doc) -> Any:
        return [*zip(names(doc, POS), names(doc, MORPH))]

    def fits(self, said: Any, n: int) -> bool:
        return len(said) == n and all(_are_labels(one, 2) for one in said)


@lru_cache(maxsize=4096)
def _joined(pos: str, morph: str) -> str:
    """The label of a morphologizer. SOURCE: spacy/pipeline/morphologizer.pyx, `get_loss`."""
    features = _Morphology.feats_to_dict(morph)
    if pos:
        features[Morphologizer.POS_FEAT] = pos
    label: str = _Morphology.dict_to_feats(features) or (_Morphology.EMPTY_MORPH if morph else "")
    return label


class Lemmas(_OfWords):
    name, factories, keys = "lemmas", ("trainable_lemmatizer",), ("lemmas",)
    _columns = (LEMMA,)

    def in_text(self, doc: Doc) -> list[str] | None:
        pairs = zip(names(doc, ORTH), names(doc, LEMMA))
        return ["=" if form == lemma else f"{form}>{lemma}" for form, lemma in pairs if lemma] or None

    def fault(self, found: Found) -> str:
        if max(found.labels.values()) < LEAST_CHANGES:
            return f"no change from word to lemma occurs {LEAST_CHANGES} times"
        return super().fault(found)

    def _counted(self, label: str) -> str:
        return "lemma"


class Sentences(_OfWords):
    name, factories, keys = "sentences", ("senter",), ("sent_starts",)
    _words = "sentence boundaries"

    def in_text(self, doc: Doc) -> list[str] | None:
        # The first token always starts a sentence.
        starts = column(doc, SENT_START).astype("int64")[1:]
        return ["start"] * int((starts == 1).sum()) if starts.any() else None

    def read(self, doc: Doc) -> list[int]:
        return [int(token.sent_start) for token in doc]

    def fits(self, said: Any, n: int) -> bool:
        return len(said) == n and all(start in (-1, 0, 1) for start in said)

    def fill(self, doc: Doc, said: Any, rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
        starts = column(doc, SENT_START).astype("int64")
        is_open = not starts[1:].all()
        for i in range(1, len(doc)):
            if not starts[i]:
                starts[i] = 1 if said[i] == 1 else -1
                filled["start"] += said[i] == 1
            else:
                conflicts["start"] += (starts[i] == 1) != (said[i] == 1)
        put(doc, [SENT_START], starts)
        return is_open

    def has_open(self, doc: Doc, labels: Collection[str]) -> bool:
        return not column(doc, SENT_START)[1:].all()


# ---------------------------------------------------------------------- trees


@dataclass
class FoundTrees(Found):
    """left_arcs, right_arcs (int): Tokens whose head comes after them, and before them."""

    left_arcs: int = 0
    right_arcs: int = 0


class Trees(_OfWords):
    name, factories, keys = "trees", ("parser", "beam_parser"), ("heads", "deps")
    _words = "dependency trees"
    found = FoundTrees
    has_labels = True
    of_unknown = 'spaCy learns {it} as "dep"'
    _columns = (DEP,)

    def count(self, doc: Doc, found: Any) -> None:
        super().count(doc, found)
        offsets = column(doc, HEAD).astype("int64")[column(doc, DEP) != 0]
        found.left_arcs += int((offsets > 0).sum())
        found.right_arcs += int((offsets < 0).sum())

    def fault(self, found: Any) -> str:
        if min(found.left_arcs, found.right_arcs) < _LEAST_ARCS:
            arcs = f"{found.left_arcs:,} words before their head and {found.right_arcs:,} after it"
            return f"there are {arcs}, and spaCy's parser needs {_LEAST_ARCS} of each"
        return super().fault(found)

    def read(self, doc: Doc) -> list[tuple[int, str]]:
        return [(token.head.i, token.dep_) for token in doc]

    def fits(self, said: Any, n: int) -> bool:
        return len(said) == n and all(head in range(n) and isinstance(label, str) for head, label in said)

    def has_open(self, doc: Doc, labels: Collection[str]) -> bool:
        return not self.has(doc)

    def fill(self, doc: Doc, said: Any, rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
        deps, heads = column(doc, DEP), column(doc, HEAD).astype("int64")
        starts = column(doc, SENT_START).astype("int64")
        # Tokens with an arc, or that one leads to.
        taken = deps != 0
        taken[(numpy.arange(len(doc)) + heads)[taken]] = True
        sentences = [*_sentences(said)]
        # In a parsed text spaCy makes up the boundaries around tokens without an arc. In another one they are
        # annotated: some trees would hide which.
        crossing = 0 if deps.any() else sum(_crosses(starts, start, end) for start, end in sentences)
        if crossing:
            conflicts["sentence"] += crossing
            return True
        for start, end in sentences:
            if taken[start:end].any():
                continue
            if any(label in rule.complete for _, label in said[start:end]):
                conflicts["sentence"] += 1
                continue
            for i in range(start, end):
                head, label = said[i]
                deps[i], heads[i] = doc.vocab.strings.add(label), head - i
                filled[label] += 1
            starts[start], starts[start + 1 : end] = 1, -1
        put(doc, [HEAD, DEP], heads, deps)
        if deps.any():
            put(doc, [SENT_START], starts)  # spaCy has set them by the arcs alone
        return not taken.all()


def _crosses(starts: numpy.ndarray, start: int, end: int) -> bool:
    """Whether a sentence does not fit annotated boundaries: 1 begins one, -1 does not, 0 is open."""
    begins = start == 0 or starts[start] != -1
    ends = end == len(starts) or starts[end] != -1
    return not begins or not ends or bool((starts[start + 1 : end] == 1).any())


def _sentences(tree: Sequence[tuple[int, str]]) -> Iterator[tuple[int, int]]:
    """The shortest pieces that no arc leads out of."""
    start = 0
    reach = list(range(len(tree)))  # the last token that is joined to each token or to one before it
    for i, (head, _) in enumerate(tree):
        low = min(i, head)
        reach[low] = max(reach[low], i, head)
    for i, last in enumerate(accumulate(reach, max)):
        if i == last:
            yield start, i + 1
            start = i + 1
