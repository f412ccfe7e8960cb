"""The forms of files, and which one a file has: by what is in it, not by its ending."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from ..words import count, listed
from . import records, tables
from .files import File, read_files
from .rows import Row


@dataclass(frozen=True)
class Form:
    """A form of files.

    name, wants (str): It, and how it is recognized, in words.
    fits (Callable): Whether a file has it; for `of_values`, whether a value of JSON has.
    read (Callable): The rows of a file; for `of_values`, those of a value, its place and its file.
    """

    name: str
    wants: str
    fits: Callable[[Any], bool]
    read: Callable[..., Iterator[Row]]
    of_values: bool = False


def _of_record(value: Any, place: str, file: File) -> Iterator[Row]:
    yield records.read_record(value, place, file)


FORMS: Final = (
    Form("spaCy's binary format", "a file of a DocBin", tables.is_binary, tables.read_binary),
    Form(
        "JSON objects",
        "a 'text' with 'spans', 'entities', 'label', 'labels', 'accept' or 'cats'; 'tokens' with 'ner_tags' or 'tags'",
        records.is_record,
        _of_record,
        of_values=True,
    ),
    Form("Label Studio's JSON", "'data' with 'annotations'", records.is_task, records.read_task, of_values=True),
    Form("spaCy's tuples", "a text and an object", records.is_pair, records.read_pair, of_values=True),
    Form("spaCy's JSON", "'paragraphs'", records.is_json_of_v2, records.read_json_of_v2, of_values=True),
    Form("brat's files", "a .txt with a .ann beside it", tables.is_brat, tables.read_brat),
    Form("CoNLL-U", "lines of ten columns between tabs", tables.is_conllu, tables.read_conllu),
    Form("spaCy's IOB", "lines of word|TAG", tables.is_iob, tables.read_iob),
    Form(
        "a table",
        "a header with 'text' and 'label', also with 'start' and 'end'; cells between , or ; or tabs",
        tables.is_table,
        tables.read_table,
    ),
    Form("columns", "a word and its tag in each line, such as B-DRUG", tables.are_columns, tables.read_columns),
)


def rows_at(path: Path) -> tuple[str, list[Row]]:
    """The texts at a path. RETURNS (tuple): The forms in words, and the rows.

    RAISES (ConfigError): No file has a form that is known, or one can't be read.
    """
    rows, forms, unknown = list[Row](), dict[str, None](), list[File]()
    for file in read_files(path):
        try:
            form = _form_of(file)
            if form is None:
                unknown.append(file)
            else:
                forms[form.name] = None
                rows += form.read(file) if not form.of_values else _rows_of_values(file, form)
        except ConfigError:
            raise
        except Exception as error:  # another program may have written anything
            said = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"Can't read '{file.path}': {said}. Is the file damaged?") from error
    if not forms:
        raise ConfigError(_no_form(unknown[0]))
    rows += [Row(file.path, left_out="Files of no known form") for file in unknown]
    return listed([*forms]), rows


def _form_of(file: File) -> Form | None:
    """The form of a file. None: none that is known. RAISES (ConfigError): It has two, or is damaged."""
    if FORMS[0].fits(file):
        return FORMS[0]
    if file.is_binary:
        return None
    if not file.records:
        return next((form for form in FORMS if not form.of_values and form.fits(file)), None)
    counts = Counter(form for _, value in file.records for form in FORMS if form.of_values and form.fits(value))
    if len(counts) > 1:
        found = listed([f"{form.name} ({count(n, 'text')})" for form, n in counts.items()])
        raise ConfigError(f"Can't read '{file.path}': expected one form, found {found}. Divide the file by its forms.")
    return next(iter(counts), None)


def _rows_of_values(file: File, form: Form) -> Iterator[Row]:
    for place, value in file.records:
        if form.fits(value):
            try:
                yield from form.read(value, place, file)
            except ConfigError:
                raise
            except Exception as error:  # another program may have written anything
                yield Row(f"{place}: {type(error).__name__}: {error}", left_out="Texts that can't be read")
        else:
            yield Row(place, left_out="Texts of another form, or without a text")


def _no_form(file: File) -> str:
    """The error for a file of no form: the three nearest, by the words of their description that it has."""
    here = file.text[:5_000]
    keys = {f"'{key}'" for _, value in file.records[:50] if isinstance(value, dict) for key in value}
    keys |= {f"'{name.lower()}'" for name in tables.names_of(file)} if not file.records else set()
    looked = [form for form in FORMS[1:] if form.of_values == bool(file.records)]
    nearest = sorted(looked, key=lambda form: -sum(key in form.wants for key in keys))[:3]
    found = f"the keys {', '.join(sorted(keys)[:8])}" if file.records and keys else repr(here.strip()[:60])
    if not here.strip():
        found = "an empty file"
    return (
        f"Can't read '{file.path}': expected texts with annotations in a form that is known, found {found}. The "
        f"nearest: {'; '.join(f'{form.name} ({form.wants})' for form in nearest)}. All of them: "
        "spacy torchopt convert --help."
    )
