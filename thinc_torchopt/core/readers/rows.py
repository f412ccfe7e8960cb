"""Texts with annotations in one form: what the readers of all forms give."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spacy.tokens import Doc


@dataclass
class Mark:
    """An annotated part of a text.

    start, end (Any): Characters, as the file says them: they may be wrong.
    text (str | None): The characters themselves, if the file has them.
    """

    start: Any
    end: Any
    label: str
    text: str | None = None


@dataclass
class Row:
    """A text of a file. What is None is not annotated.

    place (str): In the file, for messages: "line 3".
    words (list | None): The tokens. spaces (list | None): Whether there is a space behind each. None: it is not known.
    marks (list | None): Entities or spans, by characters. tags (list | None): The same, as tags of words.
    pos (list | None): For each word its part of speech.
    classes (set | None): The categories that hold. Those of the file's other texts do not.
    given (dict): Annotations under the keys of spaCy's `Example.from_dict`.
    doc (Doc | None): The text, as one of spaCy's own readers gives it.
    left_out (str): Why it is not used. Empty: it is.
    unused (list): What else is there, and is not used.
    meta (Any): What Prodigy's "meta" says of it.
    """

    place: str
    text: str = ""
    words: list[str] | None = None
    spaces: list[bool] | None = None
    marks: list[Mark] | None = None
    tags: list[str] | None = None
    pos: list[str] | None = None
    classes: set[str] | None = None
    given: dict[str, Any] = field(default_factory=dict)
    doc: Doc | None = None
    left_out: str = ""
    unused: Sequence[str] = ()
    meta: Any = None

    @property
    def is_annotated(self) -> bool:
        found = (self.marks, self.tags, self.pos, self.classes, self.doc)
        return bool(self.given) or any(one is not None for one in found)


# Tags of entities: IOB1, IOB2, BILUO, BIOES, BMES.
OF_ENTITIES: Final = re.compile(r"O|[BILUESM]-.+")


def spans_of(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """First word, word behind the last, and label of the entities that tags say, in any of these schemes: an entity
    begins at B, U and S, and where I, L, E or M have none with their label before them; it ends at L, U, E and S.
    """
    start, current = 0, ""
    for i, tag in enumerate([*tags, "O"]):
        sign, _, label = tag.partition("-")
        if current and (sign not in "ILEM" or label != current):
            yield start, i, current
            current = ""
        if label and not current:
            start, current = i, label
        if current and sign in "LUES":
            yield start, i + 1, current
            current = ""
