"""Answers about the annotation of examples, kept over the epochs.

spaCy copies each example for each update. A copy aligns its two tokenizations again, and reads entities, trees and tags
again: on a transformer, that is a quarter of the host's time for an entity recognizer. A `KeptExample` is made once for
each text of a corpus in memory. It gives the same answers, and keeps each with a fingerprint of the tokens and values
that were read, so that an annotation that a teacher or a hook changes in place is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from spacy.attrs import IDS, ORTH, SPACY
from spacy.tokens import Doc, Span
from spacy.training import Example

T = TypeVar("T")

# Words of all kept examples, of both texts of each: up to 180 bytes each. Others are read again each time: dropping the
# oldest would find nothing, as texts come in rounds.
_WORDS = 4_000_000


class KeptExample(Example):
    """An example that remembers its answers. They are those of spaCy's class, in new lists.

    SOURCE: spacy/training/example.pyx (3.8). `reads` names all attributes of tokens that a function reads.
    """

    def __init__(self, predicted: Doc, reference: Doc):
        super().__init__(predicted, reference)
        # By function and arguments: the fingerprint, and the answer.
        self._answers: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self._fingerprints: dict[tuple[Any, ...], tuple[int, int]] = {}

    def begin_update(self) -> None:
        """The texts may have changed. Within an update they don't."""
        self._fingerprints = {}

    def get_aligned(self, field: str, as_string: bool = False) -> Any:
        return list(self.answer(super().get_aligned, field, as_string, reads=(field,)))

    def get_aligned_parse(self, projectivize: bool = True) -> Any:
        heads, labels = self.answer(super().get_aligned_parse, projectivize, reads=("HEAD", "DEP"))
        return list(heads), list(labels)

    def get_aligned_ents_and_ner(self) -> tuple[list[Span], list[str]]:
        entities, tags = self.answer(super().get_aligned_ents_and_ner, reads=("ENT_IOB", "ENT_TYPE"))
        return list(entities), list(tags)

    def get_aligned_ner(self) -> list[str]:
        return self.get_aligned_ents_and_ner()[1]

    def get_aligned_spans_x2y(self, x_spans: Iterable[Span], allow_overlap: bool = False) -> list[Span]:
        """Kept for the whole text, which is all that parsers ask for unless they cut it."""
        spans = list(x_spans)
        if len(spans) != 1 or (spans[0].start, spans[0].end) != (0, len(self.x)):
            return super().get_aligned_spans_x2y(spans, allow_overlap)
        [whole], align = spans, super().get_aligned_spans_x2y
        return list(self.answer(_of_whole, align, whole, allow_overlap, key=(whole.label, allow_overlap)))

    def answer(
        self, compute: Callable[..., T], *arguments: Any, reads: Sequence[str] = (), key: tuple[Any, ...] | None = None
    ) -> T:
        """The answer of a function. reads (Sequence[str]): The attributes of the reference's tokens that it depends on.

        key (tuple | None): Stands for the arguments. None: they are their own.
        """
        place = compute.__name__, *(arguments if key is None else key)
        fingerprint = self._fingerprint(self.x), self._fingerprint(self.y, *reads)
        found = self._answers.get(place)
        if found is None or found[0] != fingerprint:
            found = self._answers[place] = fingerprint, compute(*arguments)
        answer: T = found[1]
        return answer

    def _fingerprint(self, doc: Doc, *fields: str) -> tuple[int, int]:
        key = doc is self.x, *fields
        if key not in self._fingerprints:
            values = doc.to_array([ORTH, SPACY, *(IDS.get(field, field) for field in fields)])
            self._fingerprints[key] = len(values), hash(values.tobytes())
        return self._fingerprints[key]


def _of_whole(align: Callable[..., list[Span]], whole: Span, allow_overlap: bool) -> list[Span]:
    return align([whole], allow_overlap)


class KeptExamples:
    """The kept examples of a corpus.

    at_most (int): Words of all of them together.
    """

    def __init__(self, at_most: int = _WORDS):
        self._room = at_most
        self._of: dict[int, tuple[Example, KeptExample]] = {}

    def of(self, examples: Iterable[Example]) -> list[Example]:
        """Those that stand for examples of the corpus. They have the same texts, and not copies of them."""
        return [self._kept(example) for example in examples]

    def _kept(self, example: Example) -> Example:
        original, kept = self._of.get(id(example), (None, None))
        if original is example and kept is not None and kept.x is example.x and kept.y is example.y:
            kept.begin_update()
            return kept
        kept = KeptExample(example.x, example.y)
        if (size := len(example.x) + len(example.y)) <= self._room:
            self._room -= size
            self._of[id(example)] = example, kept  # with the example, so that no other one gets its id
        return kept
