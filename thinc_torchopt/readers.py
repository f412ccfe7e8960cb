"""PythonDocs: a corpus that every Python brings along, for a demo that downloads nothing.

`pydoc_data.topics` is what `help("with")` shows: 79 chapters of the Python language reference, some 500 kB of English. Pieces of
code stand in double quotes there, as in

    The "with" statement calls "__enter__()" first.

The reader takes the quotes away and makes an entity CODE of what stood between them. Without its quotes, a word such as with, is or
class is code only by what stands around it, and that is what an entity recognizer has to learn.

*topic*: one chapter, by its key, e.g. "with". A topic belongs to one split, by the checksum of its key, so the split is the same on
every machine.
*paragraph*: lines between two blank lines. Chapters repeat each other: a paragraph belongs to the first topic, by the alphabet, that
has it, and is read once. Only prose is kept. Headings, grammar, tables, signatures and blocks of code go: they don't begin and end as
sentences do, or hold signs that prose doesn't.
SOURCE: Lib/pydoc_data/topics.py of CPython, generated from its Doc/reference. The text differs a little from version to version.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from .errors import ConfigError

LABEL = "CODE"
# Code in its quotes. Quotes that pair up in another way, as in '"\""', make the paragraph unreadable: see _unquote.
_QUOTED = re.compile(r'(?<![\w"])"(\S|\S[^"]*\S)"(?![\w"])')
# Grammar, doctests, headings, tables, comments; a term whose definition stands further in.
_NOT_PROSE = re.compile(r"::=|>>>|^\s*\.\.\. |[*=~-]{4}|\|.*\||(?:^|\s)# |\A( *)(?![*•-] |\d+\.|\[)\S.*\n\1 ", re.MULTILINE)
_MARKER = re.compile(r"^(?:[*•-]|\d+\.|\[\d+\]|\*\*[^*]+:\*\*|Note:|(?:New|Added|Changed|Deprecated) [\w ,.]+:)\s+")
_SENTENCES = re.compile(r'(?!\*\*)["“(*A-Z].*[.:]["”)]?(?: \[\d+\])*')
_MIN_WORDS = 6


def PythonDocs(split: Literal["train", "dev"], dev_share: float = 0.2) -> Callable[[Language], Iterable[Example]]:
    """Read Python's own documentation, with its code as entities CODE. Registered as `thinc-torchopt.PythonDocs.v1`.

    split ("train" | "dev"): Which part. No topic and no paragraph is in both.
    dev_share (float): Share of the topics that are for dev, between 0 and 1. Give both corpora the same.
    RETURNS (Callable): Yields one Example a paragraph.
    RAISES (ConfigError): An unknown split, a share that leaves one split empty, or a Python without its documentation.
    """
    where = "in the block of 'thinc-torchopt.PythonDocs.v1'"
    if split not in ("train", "dev"):
        raise ConfigError(f"Can't set 'split' {where}: expected 'train' or 'dev', found {split!r}.")
    if not 0.0 < dev_share < 1.0:
        raise ConfigError(f"Can't set 'dev_share' {where}: expected a number between 0 and 1, both excluded, found {dev_share}.")
    paragraphs = [text for topic, text in read_paragraphs(load_topics()) if (_place(topic) < dev_share) == (split == "dev")]
    if not paragraphs:
        raise ConfigError(
            f"Can't make the split '{split}' {where}: expected at least one topic in it, found none with dev_share = {dev_share}. "
            "Use a share that is further from 0 and 1, e.g. 0.2."
        )

    def read(nlp: Language) -> Iterator[Example]:
        for paragraph in paragraphs:
            reference = _annotate(nlp.make_doc, *_unquote(paragraph))
            if reference is not None:
                yield Example(nlp.make_doc(reference.text), reference)

    return read


def load_topics() -> Mapping[str, str]:
    """The chapters of Python's documentation by topic.

    RAISES (ConfigError): This Python came without them.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        topics = {}
    if not topics:
        raise ConfigError(
            "Can't read Python's documentation for 'thinc-torchopt.PythonDocs.v1': expected the module pydoc_data.topics with its "
            "chapters, found none. Small builds of Python leave it out. Install the full standard library (Debian: libpython3-stdlib)."
        )
    return topics


def read_paragraphs(topics: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Every paragraph of prose once, in one line, its code still quoted.

    topics (Mapping[str, str]): Chapters by topic.
    YIELDS (tuple[str, str]): The topic that the paragraph belongs to, and the paragraph.
    """
    seen = set()
    for topic in sorted(topics):
        for block in re.split(r"\n\s*\n", topics[topic]):
            words = re.sub(r"(?<=\w)-\n\s*", "-", block).split()
            text = _MARKER.sub("", " ".join(words))
            is_prose = len(words) >= _MIN_WORDS and _SENTENCES.fullmatch(text) and not _NOT_PROSE.search(block)
            if is_prose and '"' not in _QUOTED.sub("", text) and text not in seen:
                seen.add(text)
                yield topic, text


def _place(topic: str) -> float:
    """Where a topic stands between 0 and 1. A checksum: Python's own hash() changes from process to process."""
    return zlib.crc32(topic.encode("utf8")) / 2**32


def _unquote(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Take the quotes away. Also returns where in the new text each piece of code starts and ends."""
    plain, offsets, end = "", [], 0
    for quoted in _QUOTED.finditer(text):
        plain += text[end : quoted.start()]
        offsets.append((len(plain), len(plain) + len(quoted[1])))
        plain += quoted[1]
        end = quoted.end()
    return plain + text[end:], offsets


def _annotate(make_doc: Callable[[str], Doc], text: str, offsets: list[tuple[int, int]]) -> Doc | None:
    doc = make_doc(text)
    spans = [doc.char_span(start, end, label=LABEL) for start, end in offsets]
    if any(span is None for span in spans):
        return None
    doc.set_ents(spans)
    return doc
