"""Answers about the annotation of examples, kept over the epochs.

spaCy copies each example for each update. A copy aligns its two tokenizations again, and reads entities, trees and tags
again: on a transformer, that is a quarter of the host's time for an entity recognizer. A `KeptExample` is made once for
each text of a corpus in memory. Components keep there what they have read, until a teacher or a hook changes one of the
texts in place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from spacy.tokens import Doc
from spacy.training import Example

T = TypeVar("T")

# Words of all kept examples, of both texts of each: up to 180 bytes each. Others are read again each time: dropping the
# oldest would find nothing, as texts come in rounds.
_WORDS = 4_000_000


class KeptExample(Example):
    """An example that remembers answers about the tokens of its texts."""

    def __init__(self, predicted: Doc, reference: Doc):
        super().__init__(predicted, reference)
        self._answers: dict[Hashable, tuple[tuple[int, int], Any]] = {}

    def answer(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The answer of a function to these tokens. key (Hashable): Stands for all else that it depends on.

        SOURCE: spacy/training/example.pyx (3.8), `Example.alignment`: it signs all that the tokens of a text have.
        """
        _ = self.alignment
        signatures = self._x_sig, self._y_sig  # type: ignore[attr-defined]
        found = self._answers.get(key)
        if found is None or found[0] != signatures:
            found = self._answers[key] = signatures, compute()
        answer: T = found[1]
        return answer


class KeptExamples:
    """The kept examples of a corpus.

    at_most (int): Words of all of them together.
    """

    def __init__(self, at_most: int = _WORDS):
        self._room = at_most
        self._of: dict[int, tuple[Example, KeptExample]] = {}

    def of(self, examples: Iterable[Example]) -> list[KeptExample]:
        """Those that stand for examples of the corpus. They have the same texts, and not copies of them."""
        return [self._kept(example) for example in examples]

    def _kept(self, example: Example) -> KeptExample:
        original, kept = self._of.get(id(example), (None, None))
        if original is example and kept is not None and kept.x is example.x and kept.y is example.y:
            return kept
        kept = KeptExample(example.x, example.y)
        if (size := len(example.x) + len(example.y)) <= self._room:
            self._room -= size
            self._of[id(example)] = example, kept  # with the example, so that no other one gets its id
        return kept
