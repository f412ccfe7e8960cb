"""Texts with labels, as in spaCy's training data: one JSON object a line.

    {"text": "Anna flew to Oslo.", "entities": [[0, 4, "PERSON"], [13, 17, "CITY"]]}
    {"words": ["It", "rains"], "tags": ["PRP", "VBZ"]}
    {"text": "Buy now", "cats": {"SPAM": 1.0}}
    {"text": "It rains.", "entities": [], "complete": true}

Those of Prodigy, doccano and Hugging Face's datasets are read too: core/readers/records.py. "complete" has the labels
that the text annotates completely, or true for all of them: a teacher does not fill them in.
"""

from __future__ import annotations

import json
import math
import random
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spacy.attrs import MORPH
from spacy.language import Language
from spacy.pipeline import DependencyParser
from spacy.tokens import Doc
from spacy.training import Example, iob_to_biluo

from ...core import readers
from ...core.errors import ConfigError, StreamError, TorchOptError
from ...core.readers import Row
from ...core.schema import Count
from ...loop.data_check import labels_in
from ...loop.filling import COMPLETE
from .source import Line, LineReader, Place

_NESTED = ("doc_annotation", "token_annotation")

Record = dict[str, Any]


def read_record(content: bytes, place: str) -> Record:
    """Read a line. place (str): Of it, for errors. RAISES (StreamError): It is not a text with labels."""
    try:
        found = _parse(content)
    except (ValueError, RecursionError) as error:
        raise StreamError(
            f"Can't learn from {place}: expected JSON, found {_short(content)} ({error}). If it is still being "
            "written, use --follow."
        ) from error
    if not isinstance(found, dict) or not _has_text(found):
        raise StreamError(
            f"Can't learn from {place}: expected an object with a 'text' or 'words', found {_short(content)}."
        )
    return found


def _parse(content: bytes) -> Any:
    return json.loads(content.decode("utf-8-sig"))


def without_half_line(lines: Iterator[Line], notify: Callable[[str], None]) -> Iterator[Line]:
    """Lines, without a last one that has no line end and is not JSON, as it may still be being written.

    notify (Callable): Called with a note if there is one.
    """
    for line in lines:
        try:
            if line.may_grow:
                _parse(line.content)
        except (ValueError, RecursionError):
            notify(f"Left for the next run: {line.where}, which has no line end yet, and is not JSON.")
            return
        yield line


def _has_text(record: Mapping[str, Any]) -> bool:
    words = record.get("words")
    if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        return False  # spaCy takes numbers for hashes of words
    return words is not None or readers.is_record(record) or isinstance(record.get(_NESTED[1]), dict)


def row_of(record: Mapping[str, Any], place: str) -> Row:
    """Read the annotations of a record. RAISES (StreamError): Its annotations have a form that nobody reads."""
    try:
        return readers.read_record(record, place)
    except Exception as error:  # of a file that another program has written
        raise StreamError(f"Can't learn from {place}: its annotations can't be read: {in_words(error)}") from error


def unknown_keys(row: Row) -> list[str]:
    """The keys of a record that are not used."""
    return [key for key in row.unused if key != COMPLETE]


def make_example(nlp: Language, record: Mapping[str, Any], place: str) -> Example:
    """Make an example. place (str): Of the record, for errors.

    RAISES (StreamError): The annotations don't fit the text.
    """
    try:
        row = row_of(record, place)
        annotations = _annotations(row)
        words, spaces = row.words, row.spaces
        if _NESTED[1] in annotations:
            words, spaces = (annotations[_NESTED[1]].get(key) for key in ("ORTH", "SPACY"))
        if "text" in record:
            predicted = nlp.make_doc(record["text"])
        else:
            predicted = Doc(nlp.vocab, words=words, spaces=None if spaces is None else [bool(x) for x in spaces])
        example = _example(predicted, annotations)
    except Exception as error:  # spaCy's are of many kinds: an OverflowError for a head of 10^20, for example
        raise StreamError(f"Can't learn from {place}: its annotations don't fit: {in_words(error)}") from error
    for label, value in example.reference.cats.items():
        if not math.isfinite(value):
            raise StreamError(f"Can't learn from {place}: expected a finite number for '{label}', found {value}.")
    complete = record.get(COMPLETE, ())
    if not isinstance(complete, (bool, list, tuple)) or (
        not isinstance(complete, bool) and not all(isinstance(label, str) for label in complete)
    ):
        raise StreamError(
            f"Can't learn from {place}: expected a list of labels, or true, as '{COMPLETE}', found {complete!r}."
        )
    if complete:
        example.reference.user_data[COMPLETE] = complete
    return example


def as_line(record: Mapping[str, Any], reference: Doc) -> str:
    """A record with the annotations of a reference, as a line of JSON. What is missing there is missing here."""
    kept = {key: record[key] for key in ("text", COMPLETE) if key in record}
    return json.dumps({**kept, **_as_dict(reference)})


def _as_dict(doc: Doc) -> Record:
    """`Example.to_dict` with all that JSON can have. That one takes missing entities for none and missing morphological
    features for empty ones, loses the boundaries of sentences without trees, and has tuples as keys of links.
    """
    found = Example(doc, doc).to_dict()
    of_doc, of_tokens = (found[key] for key in _NESTED)
    of_doc["entities"] = [tag if token.ent_iob else "-" for tag, token in zip(of_doc["entities"], doc)]
    of_doc["links"] = [[*place, ids] for place, ids in of_doc["links"].items()]
    of_tokens["MORPH"] = [str(token.morph) if token.has_morph() else None for token in doc]
    if not doc.has_annotation("DEP"):
        del of_tokens["HEAD"], of_tokens["DEP"]
        of_tokens["SENT_START"] = [int(token.sent_start) for token in doc]
    return found


def _example(predicted: Doc, annotations: Record) -> Example:
    """`Example.from_dict`, also for what `_as_dict` has made."""
    of_doc, of_tokens = (dict(annotations.get(key, {})) for key in _NESTED)
    if isinstance(links := of_doc.get("links"), list):
        of_doc["links"] = {(start, end): ids for start, end, ids in links}
    morphs = of_tokens.get("MORPH", ())
    missing = [i for i, morph in enumerate(morphs) if morph is None]
    if missing:
        of_tokens["MORPH"] = [morph or "" for morph in morphs]
    nested = {key: found for key, found in zip(_NESTED, (of_doc, of_tokens)) if key in annotations}
    example = Example.from_dict(predicted, {**annotations, **nested})
    if missing:
        reference: Any = example.reference
        column = reference.to_array([MORPH])
        column[missing] = 0
        reference.from_array([MORPH], column)
    return example


def _annotations(row: Row) -> dict[str, Any]:
    """Those of a row, under the keys of `Example.from_dict`."""
    found = dict(row.given)
    if row.words is not None:
        found |= {"words": row.words} | ({} if row.spaces is None else {"spaces": row.spaces})
    if row.words is not None and row.pos is not None:
        found["tags"] = row.pos
    if row.marks is not None:
        found["entities"] = [(mark.start, mark.end, mark.label) for mark in row.marks]
    elif row.tags is not None:
        found["entities"] = iob_to_biluo(row.tags)
    if row.classes is not None:
        found["cats"] = dict.fromkeys(row.classes, 1.0)
    return found


def read_examples(nlp: Language, path: Path) -> Iterator[tuple[str, Example]]:
    """Read a file of texts with labels: .jsonl as the stream's, or in another form that is known.

    RETURNS (Iterator): Each as a line of JSON, and as an example.
    RAISES (StreamError): It can't be read.
    """
    if path.suffix != ".jsonl":
        try:
            docs, _ = readers.read_docs(nlp, path)
        except ConfigError as error:
            raise StreamError(str(error)) from error
        for doc in docs:
            said = {COMPLETE: doc.user_data[COMPLETE]} if COMPLETE in doc.user_data else {}
            content = as_line(said, doc)
            yield content, make_example(nlp, json.loads(content), f"'{path}'")
        return
    for line in LineReader(path).read(Place()):
        where = f"line {line.place.lines} of '{path}'"
        record = read_record(line.content, where)
        if not row_of(record, where).left_out:
            yield json.dumps(record), make_example(nlp, record, where)


# ---------------------------------------------------------------------- labels


def unknown_labels(nlp: Language, example: Example, exclude: Collection[str]) -> list[tuple[str, str]]:
    """The labels of an example that components don't have: component and label. Parsers are not looked at, which learn
    a label that they don't have as "dep"; nor components without labels of the example, or with labels made of others.

    exclude (Collection[str]): Components that are not trained.
    """
    found = []
    for name, proc in nlp.pipeline:
        if name not in exclude and not isinstance(proc, DependencyParser):
            labels = set(labels_in(nlp, name, [example]) or ())
            found += [(name, label) for label in sorted(labels - set(getattr(proc, "labels", ())))]
    return found


def _short(content: bytes) -> str:
    return reprlib.repr(content.decode("utf8", errors="replace"))


def in_words(error: Exception) -> str:
    """An error of spaCy, torch or a function of the user's as a sentence."""
    text = " ".join(str(error).split())
    if not isinstance(error, TorchOptError) and not text.startswith("[E"):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


# ---------------------------------------------------------------------- old texts


@dataclass
class Memory:
    """A memory of old texts, from which some are learned again with each new one (experience replay).

    It is a uniform sample of all lines that were seen, of constant size. Draws from Python's global random generator.

    size (int): The most lines. seen (int): The lines that were offered. lines (list[tuple]): Those that are kept, each
        with the number of labels that had been added before it: it does not have those that came later.
    SOURCE: Vitter 1985, Random Sampling with a Reservoir, algorithm R.
    """

    size: Count
    seen: Count = 0
    lines: list[tuple[str, Count]] = field(default_factory=list)

    def add(self, line: str, n_labels: int = 0) -> None:
        """Offer a line, which is kept with a probability of size / seen. n_labels (int): That had been added."""
        self.seen += 1
        if len(self.lines) < self.size:
            self.lines.append((line, n_labels))
        elif (place := random.randrange(self.seen)) < self.size:
            self.lines[place] = line, n_labels

    def draw(self, n: int) -> list[tuple[str, int]]:
        """Draw n different lines, or all if there are fewer."""
        return random.sample(self.lines, min(n, len(self.lines)))
