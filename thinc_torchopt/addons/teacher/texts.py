"""Texts that nobody has annotated: read from files, drawn by a seed, and cut.

    .txt     one text a line; in a folder, each file is one text
    .jsonl   objects with a "text"
    .spacy   spaCy's binary format: only the texts are used
    .csv ... a file in a form that core/readers knows: only its texts are used

Texts are cut at the ends of sentences, where a full stop or a blank line is; longer sentences at any token.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from spacy.language import Language
from spacy.pipeline import Sentencizer
from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

from ...core.errors import ConfigError
from ...core.readers import rows_at

ENDINGS: Final = (".txt", ".jsonl", ".spacy")
# Of files in the forms of other programs.
_OF_OTHERS: Final = (".csv", ".tsv", ".json", ".conll", ".conllu", ".iob", ".ann", ".zip", ".gz")
# The most tokens of a text, unless a setting says another number.
MAX_WORDS: Final = 60
# spaCy's tokenizer refuses longer texts. SOURCE: spacy.language.Language, `max_length`.
_LONGEST: Final = 100_000


def files_of(path: Path, where: str) -> list[Path]:
    """The files of texts at a path. where (str): The setting, for errors. RAISES (ConfigError): There are none."""
    found = [path] if path.is_file() else sorted(file for ending in ENDINGS for file in path.rglob(f"*{ending}"))
    if not found or found[0].suffix not in (*ENDINGS, *_OF_OTHERS):
        what = "a file of another kind" if path.is_file() else "a folder without such files"
        raise ConfigError(
            f"Can't read {where}: expected a file or a folder of {', '.join(ENDINGS)}, found "
            f"{what if path.exists() else 'nothing'} at '{path}'."
        )
    return found


def read_texts(path: Path, where: str) -> list[str]:
    """The texts at a path, those that are not blank. where (str): The setting, for errors.

    RAISES (ConfigError): A file can't be read, or there is no text.
    """
    found: list[str] = []
    for file in files_of(path, where):
        try:
            found += _read(file, is_whole=path.is_dir())
        except ConfigError as error:
            raise ConfigError(f"Can't read {where}. {error}") from error
        except Exception as error:  # spaCy's errors for its format are of many kinds
            said = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"Can't read {where}, '{file}': expected {_KINDS.get(file.suffix, 'texts')}: {said}"
            ) from error
    found = [text for text in found if text.strip()]
    if not found:
        raise ConfigError(f"Can't read {where}: expected texts, found none at '{path}'.")
    return found


_KINDS: Final = {
    ".txt": "text in UTF-8",
    ".jsonl": "a JSON object with a 'text' in each line",
    ".spacy": "spaCy's binary format",
}


def _read(file: Path, *, is_whole: bool) -> Iterator[str]:
    if file.suffix == ".spacy":
        for doc in DocBin().from_disk(file).get_docs(Vocab()):
            yield doc.text
        return
    if file.suffix not in ENDINGS:
        _, rows = rows_at(file)
        yield from (row.text or " ".join(row.words or ()) for row in rows)
        return
    text = file.read_text("utf-8-sig")
    if file.suffix == ".txt" and is_whole:
        yield text
        return
    for i, line in enumerate(text.split("\n"), start=1):
        if file.suffix == ".txt":
            yield line
        elif line.strip():
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("text"), str):
                raise ValueError(f"line {i:,} is {line[:60]!r}")
            if not _is_unicode(record["text"]):
                raise ValueError(f"the text of line {i:,} has half of a surrogate pair: {line[:60]!r}")
            yield record["text"]


def _is_unicode(text: str) -> bool:
    """Whether a text can be written: JSON can have one half of a surrogate pair without the other."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def count_pieces(nlp: Language, path: Path, where: str, most: int) -> int:
    """Count the texts at a path, as they are cut by default. most (int): There it stops.

    where (str): The setting, for errors. RAISES (ConfigError): As `read_texts` does.
    """
    return sum(1 for _ in islice(draw_pieces(nlp, read_texts(path, where), MAX_WORDS, 0), most))


def draw_pieces(nlp: Language, texts: list[str], max_words: int, seed: int) -> Iterator[Doc]:
    """Pieces of texts, in an order that the seed says. Each is made when it is drawn.

    max_words (int): The most tokens of a piece. 0: texts are whole.
    """
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)
    for i in order:
        for block in _blocks(texts[i]):
            yield from cut(nlp.make_doc(block), max_words)


def _blocks(text: str) -> Iterator[str]:
    """A text in parts that a tokenizer takes, which end at white space."""
    while len(text) > _LONGEST:
        found = [match.end() for match in re.finditer(r"\s", text[:_LONGEST])]
        end = found[-1] if found else _LONGEST
        yield text[:end]
        text = text[end:]
    yield text


def cut(doc: Doc, max_words: int) -> Iterator[Doc]:
    """Cut a text into pieces of whole sentences, as few as there can be. Blank ones are left out.

    max_words (int): The most tokens of a piece. 0: it is whole.
    """
    start, end = 0, 0
    for sentence_end in [] if not max_words else _sentence_ends(doc):
        if sentence_end - start > max_words and end > start:
            yield from _piece(doc, start, end)
            start = end
        while sentence_end - start > max_words:
            yield from _piece(doc, start, start + max_words)
            start += max_words
        end = sentence_end
    yield from _piece(doc, start, len(doc))


def _sentence_ends(doc: Doc) -> list[int]:
    [starts] = Sentencizer().predict([doc])
    after_blank = [i > 0 and "\n\n" in doc[i - 1].text_with_ws for i in range(len(doc))]
    return [i for i in range(1, len(doc)) if starts[i] or after_blank[i]] + [len(doc)]


def _piece(doc: Doc, start: int, end: int) -> Iterator[Doc]:
    while start < end and doc[start].is_space:
        start += 1
    while start < end and doc[end - 1].is_space:
        end -= 1
    if start < end:
        tokens = doc[start:end]
        yield Doc(
            doc.vocab, words=[token.text for token in tokens], spaces=[bool(token.whitespace_) for token in tokens]
        )
