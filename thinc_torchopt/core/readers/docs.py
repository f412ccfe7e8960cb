"""Docs from the rows of a file, and an account of all that did not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.util import filter_spans

from ..kinds import Annotations, Tally, survey
from ..words import count, listed
from .rows import Mark, Row, spans_of

Misaligned = Literal["expand", "contract", "drop"]
MISALIGNED: Final[tuple[Misaligned, ...]] = ("expand", "contract", "drop")
# With more overlapping spans than this share, they are meant: a span categorizer learns them.
_OVERLAPPING: Final = 0.01
_KEY: Final = "sc"


@dataclass
class Told:
    """An account of a file.

    form (str): In words. texts, annotated (int): Those that are used, and those of them that are annotated.
    found (Annotations): Of these, counted.
    misfits (Tally): What did not fit, or was left out.
    unused (Counter): Keys and columns that are not used, with the number of texts.
    rows (list): Of the texts that are used, in order.
    """

    form: str
    texts: int = 0
    annotated: int = 0
    found: Annotations = field(default_factory=Annotations)
    misfits: Tally = field(default_factory=Tally)
    unused: Counter[str] = field(default_factory=Counter)
    rows: list[Row] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """It in words, a line for each thing, but for what `found` tells."""
        yield f"{count(self.texts, 'text')}, {self.annotated:,} annotated, read as {self.form}."
        yield from self.misfits.lines()
        if self.unused:
            yield f"Not used: {listed([f'{key} ({n:,})' for key, n in self.unused.most_common()], most=8)}."


def docs_of(nlp: Language, rows: Iterable[Row], told: Told, misaligned: Misaligned) -> list[Doc]:
    """Docs of the rows that are used.

    told (Told): Is added to. misaligned: For spans that begin or end within a token.
    """
    used = [row for row in rows if _is_used(row, told)]
    classes = sorted(set[str]().union(*(row.classes or () for row in used)))
    is_utf16, made = _counts_in_utf16(used), []
    for row in used:
        if (doc := _doc(nlp, row, told)) is not None:
            made.append((row, doc, _marked(row, doc, told, misaligned, is_utf16)))
    of_texts = [list(dict.fromkeys(spans)) for _, _, spans in made if spans is not None]
    overlapping = sum(len(spans) - len(filter_spans(spans)) for spans in of_texts)
    are_meant = overlapping > _OVERLAPPING * sum(map(len, of_texts))
    if overlapping:
        how = f"kept, as spans for a span categorizer: doc.spans['{_KEY}']" if are_meant else "the longest stay"
        told.misfits.counts[f"Overlapping spans ({how})"] = overlapping
    docs = []
    for row, doc, spans in made:
        if spans is not None and are_meant:
            doc.spans[_KEY] = list(dict.fromkeys(spans))
        elif spans is not None:
            doc.set_ents(filter_spans(spans), default="outside")
        if row.classes is not None:
            doc.cats = {name: float(name in row.classes) for name in classes}
        told.texts += 1
        told.annotated += row.is_annotated
        told.unused.update([*dict.fromkeys(row.unused)])
        docs.append(doc)
        told.rows.append(row)
    told.found = survey(docs)
    return docs


def _is_used(row: Row, told: Told) -> bool:
    if not (row.left_out or row.words or row.text.strip()):
        row.left_out = "Empty texts"
    if row.left_out:
        told.misfits.note(row.left_out, row.place if not row.text.strip() else row.text)
    return not row.left_out


def _doc(nlp: Language, row: Row, told: Told) -> Doc | None:
    """A text with all annotations but spans. None: they don't fit, which is noted."""
    if row.doc is not None:
        [doc] = (
            DocBin(store_user_data=True, docs=[row.doc]).get_docs(nlp.vocab)
            if row.doc.vocab is not nlp.vocab
            else [row.doc]
        )
        return doc
    try:
        doc = nlp.make_doc(row.text) if row.words is None else Doc(nlp.vocab, words=row.words, spaces=row.spaces)
        given = {**row.given, **({"tags": row.pos} if row.pos is not None else {})}
        if not given:
            return doc
        example = Example.from_dict(doc, {"entities": ["-"] * len(doc), **given} if "entities" not in given else given)
        return example.reference
    except Exception as error:  # spaCy's are of many kinds
        told.misfits.note("Texts whose annotations don't fit them", f"{row.place}: {' '.join(str(error).split())}")
        return None


def _marked(row: Row, doc: Doc, told: Told, misaligned: Misaligned, is_utf16: bool) -> list[Span] | None:
    """The spans of a text. None: it is not annotated with any."""
    if row.tags is not None:
        return [Span(doc, start, end, label) for start, end, label in spans_of(row.tags)]
    if row.marks is None:
        return None
    found = [_span(mark, doc, told, misaligned, is_utf16) for mark in row.marks]
    return [span for span in found if span is not None]


def _span(mark: Mark, doc: Doc, told: Told, misaligned: Misaligned, is_utf16: bool) -> Span | None:
    text, shown = doc.text, f"{mark.start} to {mark.end}, {mark.label}"
    if not mark.label:
        told.misfits.note("Spans without a label", shown)
        return None
    place = _place(mark, text, is_utf16)
    if place is None:
        told.misfits.note("Spans beyond the text", shown)
        return None
    start, end = place
    if mark.text is not None and text[start:end].split() != mark.text.split():  # brat writes a line end as a space
        told.misfits.note(
            "Spans whose characters are not those that the file says", f"{mark.text!r}, found {text[start:end]!r}"
        )
        return None
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    if start == end:
        told.misfits.note("Spans of white space alone", shown)
        return None
    span = doc.char_span(start, end, label=mark.label)
    if span is None:
        if misaligned != "drop":
            span = doc.char_span(start, end, label=mark.label, alignment_mode=misaligned)
        how = f"now {span.text}" if span is not None else "left out"
        told.misfits.note(f"Spans that begin or end within a token ({misaligned})", f"{text[start:end]}, {how}")
    return span


def _place(mark: Mark, text: str, is_utf16: bool) -> tuple[int, int] | None:
    """The first character of a span, and the one behind its last. None: they are not in the text."""
    start, end = mark.start, mark.end
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in (start, end)) or not 0 <= start < end:
        return None
    if is_utf16:
        units = text.encode("utf-16-le", "surrogatepass")
        start, end = (len(units[: 2 * place].decode("utf-16-le", "replace")) for place in (start, end))
    return (start, end) if end <= len(text) else None


def _counts_in_utf16(rows: Iterable[Row]) -> bool:
    """Whether a file counts characters as browsers do: those outside of Unicode's first plane twice. It is seen where
    the file has the characters of its spans, too.
    """
    in_text, in_units = 0, 0
    for row in rows:
        for mark in row.marks or ():
            if mark.text is not None and not row.text.isascii():
                places = (_place(mark, row.text, is_utf16) for is_utf16 in (False, True))
                one, other = (place is not None and row.text[slice(*place)] == mark.text for place in places)
                in_text, in_units = in_text + one, in_units + other
    return in_units > in_text
