"""Texts with annotations from files of other programs: recognized by content, read, and told what did not fit.

`rows_at` gives the texts of a file in one form, whatever its own is; `docs_of` makes Docs of them. forms.py has the
table of all forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ..checks import Section
from ..errors import ConfigError
from .docs import MISALIGNED, Misaligned, Told, docs_of
from .forms import rows_at
from .records import is_record, read_record
from .rows import Row

_TEXTS = Section("the block of 'thinc-torchopt.Texts.v1'")


def read_docs(nlp: Language, path: Path, misaligned: Misaligned = "expand") -> tuple[list[Doc], Told]:
    """Read the texts at a path: a file of any known form, a folder or an archive.

    nlp (Language): Its tokenizer makes the tokens, where the file does not say them.
    misaligned ("expand" | "contract" | "drop"): For spans that begin or end within a token.
    RAISES (ConfigError): It can't be read, or there is no text that can be used.
    """
    form, rows = rows_at(path)
    told = Told(form)
    docs = docs_of(nlp, rows, told, misaligned)
    if not told.annotated:
        raise ConfigError(f"Can't use '{path}': expected annotated texts, found none. " + " ".join(told.lines()))
    return docs, told


def Texts(path: str, misaligned: Misaligned = "expand") -> Callable[[Language], Iterator[Example]]:
    """A corpus that reads a file of any known form each time: for a file that grows. See docs/formats.md.

    path (str): A file, a folder or an archive.
    misaligned ("expand" | "contract" | "drop"): For spans that begin or end within a token.
    """
    file = _TEXTS.file("path", path, "the path of a file, a folder or an archive")
    choice: Any = _TEXTS.choice("misaligned", misaligned, MISALIGNED)

    def read(nlp: Language) -> Iterator[Example]:
        for doc in read_docs(nlp, file, choice)[0]:
            if doc.has_unknown_spaces:
                predicted = Doc(nlp.vocab, words=[token.text for token in doc])
            else:
                predicted = nlp.make_doc(doc.text)
            yield Example(predicted, doc)

    return read
