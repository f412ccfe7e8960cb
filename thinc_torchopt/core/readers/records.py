"""Texts in JSON: those of Prodigy, doccano, Hugging Face's datasets, Label Studio, and spaCy.

Most are objects with a text or words, and annotations under keys that are alike; what a value means is seen by its
form: a list of places and labels, of names for each word, of categories.

    {"text": "Anna flew.", "spans": [{"start": 0, "end": 4, "label": "PERSON"}], "answer": "accept"}      Prodigy
    {"text": "Anna flew.", "label": [[0, 4, "PERSON"]]}   {"text": "Buy now", "label": ["SPAM"]}          doccano
    {"tokens": ["Anna", "flew"], "ner_tags": ["B-PERSON", "O"]}   {"text": "Buy now", "label": "SPAM"}    Hugging Face
    {"words": ["It", "rains"], "tags": ["PRP", "VBZ"]}   ["Anna flew.", {"entities": [[0, 4, "PERSON"]]}]       spaCy
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from spacy.training.converters.json_to_docs import json_to_docs
from spacy.util import get_words_and_spaces

from ..errors import ConfigError
from .files import File
from .rows import OF_ENTITIES, Mark, Row

# The keys of annotations, but for those that only spaCy has.
_OF_TEXTS: Final = ("label", "labels", "cats", "category")
_ANNOTATIONS: Final = ("spans", "entities", *_OF_TEXTS, "ner_tags", "ner", "tags", "pos_tags")
# SOURCE: `Example.from_dict`.
_OF_SPACY: Final = ("pos", "morphs", "lemmas", "heads", "deps", "sent_starts", "links")
_NESTED: Final = ("doc_annotation", "token_annotation")
# No annotations, or used with others.
_BESIDE: Final = {"text", "words", "tokens", "spaces", "id", "meta", "answer", "accept", "options", "Comments"}


def is_record(value: Any) -> bool:
    """Whether it is a text with annotations, or one that could have some."""
    return isinstance(value, dict) and (isinstance(value.get("text"), str) or _words_of(value) is not None)


def read_record(record: Mapping[str, Any], place: str, file: File | None = None) -> Row:
    """The row of an object.

    file (File | None): It stands there; the names of labels may stand beside it.
    RAISES (ConfigError): It has numbers for names that are not known.
    """
    row = Row(place, str(record.get("text", "")), meta=record.get("meta"))
    if (words := _words_of(record)) is not None:
        row.words, row.spaces = words
        if row.text and row.spaces is None:  # they say how the text is cut, if they are all of it
            with suppress(ValueError):
                words = get_words_and_spaces(row.words, row.text)
            row.words, row.spaces = words if words[1] is not None and len(words[0]) == len(row.words) else (None, None)
    answer = record.get("answer", "accept")
    if answer != "accept":
        row.left_out = 'Texts whose "answer" is not "accept"'
    for key in _ANNOTATIONS:
        if record.get(key) is not None:
            _read_value(row, key, record[key], file)
    row.given |= {key: record[key] for key in (*_OF_SPACY, *_NESTED) if record.get(key) is not None}
    if isinstance(label := record.get("label"), str) and "answer" in record and "spans" not in record:
        row.classes, row.given["cats"] = None, {label: float(answer == "accept")}  # a question with yes or no
        row.left_out *= answer != "reject"
    if isinstance(accepted := record.get("accept"), list):
        if names := [one.get("id") for one in record.get("options") or () if isinstance(one, dict)]:
            row.given["cats"] = {str(name): float(name in accepted) for name in names}
        else:
            row.classes = set(map(str, accepted))
    known = {*_ANNOTATIONS, *_OF_SPACY, *_NESTED, *_BESIDE}
    row.unused = [key for key, value in record.items() if key not in known and key[:1] != "_" and value not in ([], {})]
    return row


def _words_of(record: Mapping[str, Any]) -> tuple[list[str], list[bool] | None] | None:
    """The words of a text, and whether a space is behind each, as spaCy, Hugging Face and Prodigy write them."""
    found = record.get("words") or record.get("tokens")
    if not isinstance(found, list) or not found:
        return None
    if all(isinstance(word, str) for word in found):
        return found, record.get("spaces")
    if all(isinstance(token, dict) and isinstance(token.get("text"), str) for token in found):
        words, spaces = [token["text"] for token in found], [bool(token.get("ws", True)) for token in found]
        whole = "".join(word + " " * space for word, space in zip(words, spaces))
        return (words, spaces) if whole == record.get("text") else None
    return None


def _read_value(row: Row, key: str, value: Any, file: File | None) -> None:
    """Take what a value says into a row."""
    values = value if isinstance(value, list) else [value]
    kinds = set(map(type, values))
    if values is value and kinds <= {dict, list, tuple}:
        row.marks = [mark for one in value for mark in _marks(one)]
    elif values is value and kinds <= {str, int} and row.words is not None and key != "entities":
        tags = _names(value, key, file)
        if all(map(OF_ENTITIES.fullmatch, tags)) and row.tags is None:
            row.tags = tags
        elif row.pos is None:
            row.pos = tags
    elif kinds <= {str, int} and key in _OF_TEXTS and (values is value or key != "cats"):
        row.classes = set(_names(values, key, file, must=False)) - {""} or None
    else:
        row.given[key] = value  # spaCy's own forms


def _marks(found: Any) -> Iterator[Mark]:
    if isinstance(found, dict):
        start, end = (
            next((found[key] for key in (one, f"{one}_offset") if key in found), None) for one in ("start", "end")
        )
        for label in found.get("labels") or [found.get("label", "")]:  # several: of Label Studio
            yield Mark(start, end, str(label), found.get("text"))
    else:
        start, end, label = [*found, None, None, None][:3]
        yield Mark(start, end, "" if label is None else str(label))


def _names(values: list[Any], key: str, file: File | None, *, must: bool = True) -> list[str]:
    """Names, for which numbers may stand that Hugging Face's datasets explain in a file beside."""
    if not any(isinstance(value, int) for value in values):
        return values
    about = None if file is None else file.about()
    found: Any = about.records[0][1] if about is not None and about.records else {}
    for part in ("features", key, "feature", "names"):
        found = found.get(part, found if part == "feature" else None) if isinstance(found, dict) else None
    if isinstance(found, list):
        return [str(found[value]) if isinstance(value, int) and 0 <= value < len(found) else "" for value in values]
    if must:
        raise ConfigError(
            f"Can't read '{file.path if file else 'the stream'}': expected names in '{key}', found numbers. Put the "
            "data set's dataset_info.json, which has their names, beside the file; or write the names."
        )
    return [str(value) for value in values]


# ---------------------------------------------------------------------- other forms


def is_task(value: Any) -> bool:
    """Whether it is a text of Label Studio's."""
    return isinstance(value, dict) and isinstance(value.get("data"), dict) and "annotations" in value


def read_task(task: Mapping[str, Any], place: str, file: File) -> Iterator[Row]:
    """A text of Label Studio's: its first annotation that was not cancelled."""
    texts = [value for value in task["data"].values() if isinstance(value, str)]
    row = Row(place, task["data"].get("text") or max(texts, key=len, default=""))
    done = [one for one in task["annotations"] or () if not one.get("was_cancelled")]
    if task["annotations"] and not done:
        row.left_out = "Texts that the annotator cancelled"
    unused = ["a second annotation of a text"] * (len(done) > 1)
    results = done[0].get("result") or () if done else ()
    row.marks = [] if done and not results else None
    for result in results:
        value = result.get("value") or {}
        for label in value.get("labels") or ():
            row.marks = [*(row.marks or ()), Mark(value.get("start"), value.get("end"), str(label), value.get("text"))]
        if "choices" in value:
            row.classes = (row.classes or set()) | set(value["choices"])
        elif "labels" not in value:
            unused.append(str(result.get("type")))
    row.unused = unused
    yield row


def is_pair(value: Any) -> bool:
    """Whether it is one of spaCy's tuples."""
    return isinstance(value, list) and list(map(type, value)) == [str, dict]


def read_pair(pair: Any, place: str, file: File) -> Iterator[Row]:
    yield read_record({**pair[1], "text": pair[0]}, place, file)


def is_json_of_v2(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("paragraphs"), list)


def read_json_of_v2(value: Mapping[str, Any], place: str, file: File) -> Iterator[Row]:
    for doc in json_to_docs(json.dumps([{"id": 0, **value}])):
        yield Row(place, doc.text, doc=doc)
