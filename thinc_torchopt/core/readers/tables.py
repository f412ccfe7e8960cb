"""Texts in plain files: tables (CSV), columns, CoNLL-U, spaCy's IOB, brat, and spaCy's binary format."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from spacy.tokens import DocBin
from spacy.training.converters.conllu_to_docs import conllu_to_docs
from spacy.vocab import Vocab

from ..errors import ConfigError
from .files import File
from .rows import OF_ENTITIES, Mark, Row

# Names of a table's columns, in lower case.
_TEXT: Final = ("text", "sentence", "content", "document", "review", "comment", "message", "tweet", "body")
_LABEL: Final = ("label", "labels", "category", "categories", "class", "target", "sentiment", "topic", "intent")
_START: Final = ("start", "start_char", "start_offset", "begin")
_END: Final = ("end", "end_char", "end_offset", "stop")
_DOCUMENT: Final = "-DOCSTART-"

# ---------------------------------------------------------------------- tables


def names_of(file: File) -> list[str]:
    """The names of a table's columns. Empty: the first line is no header."""
    return next(iter(_cells(file)), [])


def _cells(file: File) -> list[list[str]]:
    first = next(filter(str.strip, file.lines), "")
    delimiter = max(",\t;|", key=first.count)
    before = csv.field_size_limit(len(file.text))  # a text may be long
    try:
        rows = list(csv.reader(io.StringIO(file.text, newline=""), delimiter=delimiter))
    finally:
        csv.field_size_limit(before)
    return [[cell.strip() for cell in cells] for cells in rows if any(cells)]


def is_table(file: File) -> bool:
    names = {name.lower() for name in names_of(file)}
    return len(names) > 1 and not names.isdisjoint(_TEXT)


def read_table(file: File) -> Iterator[Row]:
    """A text in each row, with a column of labels (several between | or ;), or one of 0 and 1 for each label; or a span
    in each row.
    """
    names, *rows = _cells(file)
    bad = next((i for i, row in enumerate(rows, start=1) if len(row) != len(names)), None)
    if bad is not None:
        raise ConfigError(
            f"Can't read '{file.path}': expected {len(names)} cells in row {bad:,}, as in the header, found "
            f"{len(rows[bad - 1])}. Put a text that has the character between cells in it between quotation marks."
        )
    text, label, start, end = (_column(names, known) for known in (_TEXT, _LABEL, _START, _END))
    others = [i for i in range(len(names)) if i not in (text, label)]
    flags = [i for i in others if label is None and all(row[i] in ("0", "1") for row in rows)]
    if label is None and len(others) == 1:
        label, flags = others[0], []
    if label is None and not flags:
        raise ConfigError(
            f"Can't read '{file.path}': expected a column 'label', or one of 0 and 1 for each label, found "
            f"{', '.join(map(repr, names))}. Rename the column of labels."
        )
    of_text: dict[str, Row] = {}
    unused = [names[i] for i in others if i not in (label, start, end, *flags)]
    for i, cells in enumerate(rows, start=1):
        row = Row(f"row {i:,}", cells[text or 0], unused=unused)
        if label is None:
            row.given["cats"] = {names[k]: float(cells[k]) for k in flags}
        elif start is not None and end is not None:  # several rows have the same text
            row = of_text.setdefault(row.text, row)
            mark = [Mark(_number(cells[start]), _number(cells[end]), cells[label])] * bool(cells[label])
            row.marks = [*(row.marks or ()), *mark]
        elif cells[label]:
            row.classes = {part.strip() for part in re.split(r"[|;]", cells[label])} - {""}
        if start is None or end is None:
            yield row
    yield from of_text.values()


def _column(names: Sequence[str], known: Sequence[str]) -> int | None:
    lowered = [name.lower() for name in names]
    return next((lowered.index(name) for name in known if name in lowered), None)


def _number(cell: str) -> Any:
    whole, _, rest = cell.partition(".")
    return int(whole) if re.fullmatch(r"-?[0-9]{1,12}", whole) and not rest.strip("0") else cell


# ---------------------------------------------------------------------- columns


def _columns_of(file: File) -> list[list[str]]:
    """The fields of each line: between tabs if there are any, as words may have spaces then. None of a comment that
    could be a word with its tag, where all others are tags of entities: `# newdoc`.
    """
    delimiter = "\t" if "\t" in file.text else None
    lines = [line.split(delimiter) if line.strip() else [] for line in file.lines]
    are_tags = [is_tag(fields[-1]) for fields in lines if fields and fields[0] != "#"]
    if sum(are_tags) <= 0.9 * len(are_tags):
        return lines
    return [[] if fields[:1] == ["#"] and not is_tag(fields[-1]) else fields for fields in lines]


def _width(lines: Sequence[list[str]]) -> int:
    return Counter(len(fields) for fields in lines if fields).most_common(1)[0][0]


def are_columns(file: File) -> bool:
    lines = _columns_of(file)
    if not any(lines) or (width := _width(lines)) < 2:
        return False
    last = [fields[-1] for fields in lines if len(fields) == width]
    are_blocks = [] in lines[:-1] and width == 2
    return len(last) > 0.9 * sum(map(bool, lines)) and (are_blocks or sum(map(is_tag, last)) > 0.9 * len(last))


def is_tag(text: str) -> bool:
    return OF_ENTITIES.fullmatch(text) is not None


def read_columns(file: File) -> Iterator[Row]:
    """A word and its tag in each line: the first and the last column. Texts end at empty lines, or at -DOCSTART- where
    there is one; then empty lines end sentences.
    """
    lines = _columns_of(file)
    width = _width(lines)
    has_documents = any(fields[:1] == [_DOCUMENT] for fields in lines)
    words, tags, starts = list[str](), list[str](), list[int]()
    for i, fields in enumerate([*lines, [], [_DOCUMENT]], start=1):
        is_document = fields[:1] == [_DOCUMENT]
        if fields and not is_document and len(fields) == width:
            if not words:
                begin = i
            starts.append(-1 if words and lines[i - 2] else 1)
            words.append(fields[0])
            tags.append(fields[-1].strip())
        elif words and (is_document or not (fields or has_documents)):
            row = Row(f"line {begin:,}", words=words, unused=[f"column {k}" for k in range(2, width)])
            row.tags, row.pos = (tags, None) if all(map(is_tag, tags)) else (None, tags)
            row.given = {"sent_starts": starts} if starts.count(1) > 1 else {}
            yield row
            words, tags, starts = [], [], []
        elif fields and not is_document and not fields[0].startswith("#"):
            raise ConfigError(
                f"Can't read '{file.path}': expected {width} columns in line {i:,}, as in most lines, found "
                f"{len(fields)}. Repair the line; or is the file cut off?"
            )


def is_conllu(file: File) -> bool:
    rows = [line.split("\t") for line in file.lines[:200] if line and line[0] != "#"]
    return bool(rows) and all(len(row) == 10 and row[0][:1].isdigit() for row in rows)


def read_conllu(file: File) -> Iterator[Row]:
    """Texts end where `# newdoc` says so; without it, each sentence is one."""
    parts = re.split(r"(?m)^(?=# newdoc)", "\n".join(file.lines))
    for part in filter(str.strip, parts):
        for doc in conllu_to_docs(part.strip() + "\n\n", n_sents=len(part) if len(parts) > 1 else 1, no_print=True):
            yield Row("", doc.text, doc=doc)


def is_iob(file: File) -> bool:
    words = file.text[:20_000].split()
    return bool(words) and sum("|" in word and is_tag(word.rpartition("|")[2]) for word in words) > 0.9 * len(words)


def read_iob(file: File) -> Iterator[Row]:
    """A text in each line: word|TAG, or word|POS|TAG."""
    for i, line in enumerate(file.lines, start=1):
        parts = [word.split("|") for word in line.split()]
        if parts:
            row = Row(f"line {i:,}", words=[one[0] for one in parts], tags=[one[-1] for one in parts])
            row.pos = [one[1] for one in parts] if min(map(len, parts)) > 2 else None
            yield row


# ---------------------------------------------------------------------- brat, spaCy's binary format


def is_brat(file: File) -> bool:
    return file.path.endswith(".txt") and file.marks() is not None


def read_brat(file: File) -> Iterator[Row]:
    """A text, with the annotations of the .ann beside it. SOURCE: brat's standoff format."""
    marks = file.marks()
    row, unused = Row(file.path, file.text, marks=[]), list[str]()
    assert marks is not None and row.marks is not None
    for line in filter(str.strip, marks.lines):
        key, _, rest = line.partition("\t")
        label, *numbers = rest.partition("\t")[0].split(" ")
        if key[0] == "T" and len(numbers) == 2:
            row.marks.append(Mark(_number(numbers[0]), _number(numbers[1]), label, rest.partition("\t")[2]))
        else:
            unused.append("entities in several parts" if key[0] == "T" else f"lines that begin with {key[0]}")
    row.unused = unused
    yield row


def is_binary(file: File) -> bool:
    return file.content[:2] in (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def read_binary(file: File) -> Iterator[Row]:
    try:
        docs = list(DocBin(store_user_data=True).from_bytes(file.content).get_docs(Vocab()))
    except Exception as error:  # spaCy's errors for it are of many kinds
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"Can't read '{file.path}': expected spaCy's binary format. {said}") from error
    for doc in docs:
        yield Row("", doc.text, doc=doc)
