"""PythonDocs: a corpus that every Python contains, for a demo without downloads.

`pydoc_data.topics` is the text of `help("with")`: chapters of Python's reference manual, about 500 kB of English in 79
topics. Code is in double quotes there, as in

    The "with" statement calls "__enter__()" first.

The reader removes the quotes, and makes the text in them an entity CODE. Without quotes, only the words around it tell
whether `with`, `class` or `set` is code: an entity recognizer has to learn that.

*topic*: a chapter, by its key, e.g. "with". The checksum of its key decides whether it is for training or for dev, the
same on every machine. *paragraph*: the lines between two blank lines. Chapters repeat each other; a paragraph is read
once, for the first of its topics in alphabetical order.

Only running prose is read: no grammar, code blocks, doctests, tables, headings and signatures. Paragraphs with spaces
in code, as in "x if C else y", are left out too: without quotes, nobody can tell where such code ends.
SOURCE: Lib/pydoc_data/topics.py of CPython, made from its Doc/reference. The text differs a little from version to
    version.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Literal

from spacy.language import Language
from spacy.training import Example

from ..core.errors import ConfigError

_WHERE = "in the block of 'thinc-torchopt.PythonDocs.v1'"
_MIN_WORDS = 6
_QUOTED = re.compile(r'(?<![\w"])"([^"\s]+)"(?![\w"])')
# Bullets, numbers and the like, which don't belong to the sentence.
_MARKER = re.compile(r"^(?:[*•-]|\d+\.|\[\d+\]|\*\*[^*]+:\*\*|Note:|(?:New|Added|Changed|Deprecated) [\w ,.]+:)\s+")
# Prose begins and ends as sentences do. Grammar, code, doctests, tables, headings and signatures don't.
_SENTENCES = re.compile(r'(?!\*\*)["“(*A-Z].*[.:]["”)]?(?: \[\d+\])*')
# A first line that is not a list item, with further lines indented below it: a term and its definition.
_TERM = re.compile(r"( *)(?![*•-] |\d+\.|\[)\S.*\n\1 ")


def PythonDocs(split: Literal["train", "dev"], *, dev_share: float = 0.2) -> Callable[[Language], Iterable[Example]]:
    """Read Python's own documentation, with its code as entities CODE. Registered as `thinc-torchopt.PythonDocs.v1`.

    split ("train" | "dev"): The part. No topic and no paragraph is in both, if both have the same `dev_share`.
    dev_share (float): Fraction of the topics for dev, between 0 and 1.
    RETURNS (Callable): Yields one Example for each paragraph.
    RAISES (ConfigError): An unknown split, a share that leaves the split empty, or a Python without its documentation.
    """
    if split not in ("train", "dev"):
        raise ConfigError(f"Can't set 'split' {_WHERE}: expected 'train' or 'dev', found {split!r}.")
    if not isinstance(dev_share, (int, float)) or not 0.0 < dev_share < 1.0:
        raise ConfigError(
            f"Can't set 'dev_share' {_WHERE}: expected a number above 0 and below 1, found {dev_share!r}."
        )
    paragraphs = [text for topic, text in _all_paragraphs() if is_dev(topic, dev_share) == (split == "dev")]
    if not paragraphs:
        raise ConfigError(
            f"Can't read the split '{split}' {_WHERE}: expected at least one topic, found none with dev_share = "
            f"{dev_share}. Choose a share that is further from 0 and 1, e.g. 0.2."
        )

    def read(nlp: Language) -> Iterator[Example]:
        for paragraph in paragraphs:
            text, offsets = unquote(paragraph)
            reference = nlp.make_doc(text)
            spans = [span for start, end in offsets if (span := reference.char_span(start, end, label="CODE"))]
            # In 1 paragraph of 100 the tokenizer joins code with its neighbors ("x." at the end of a sentence): these
            # are left out.
            if len(spans) == len(offsets):
                reference.set_ents(spans)
                yield Example(nlp.make_doc(text), reference)

    return read


@cache
def _all_paragraphs() -> list[tuple[str, str]]:
    """Of this Python: both splits read them, which takes a while."""
    return [*read_paragraphs(load_topics())]


def load_topics() -> Mapping[str, str]:
    """The chapters of Python's documentation, by topic.

    RAISES (ConfigError): This Python lacks them.
    """
    topics: dict[str, str]
    try:
        from pydoc_data.topics import topics
    except ImportError:
        topics = {}
    if not topics:
        raise ConfigError(
            "Can't read Python's documentation for 'thinc-torchopt.PythonDocs.v1': expected topics in the module "
            "pydoc_data.topics, found none. Some small builds of Python leave them out. Install Python with its full "
            "standard library."
        )
    return topics


def is_dev(topic: str, dev_share: float) -> bool:
    """Whether a topic is for dev. By a checksum: Python's own hash() of a string changes from process to process."""
    return zlib.crc32(topic.encode("utf8")) / 2**32 < dev_share


def read_paragraphs(topics: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Every paragraph of running prose once, as one line, its code still in quotes.

    topics (Mapping[str, str]): Chapters by topic.
    YIELDS (tuple[str, str]): The topic that the paragraph belongs to, and the paragraph.
    """
    seen = set()
    for topic in sorted(topics):
        for block in re.split(r"\n\s*\n", topics[topic].strip("\n")):
            words = re.sub(r"(?<=\w)-\n\s*", "-", block).split()
            text = _MARKER.sub("", " ".join(words))
            is_prose = len(words) >= _MIN_WORDS and _SENTENCES.fullmatch(text) and not _TERM.match(block)
            if is_prose and '"' not in _QUOTED.sub("", text) and text not in seen:
                seen.add(text)
                yield topic, text


def unquote(paragraph: str) -> tuple[str, list[tuple[int, int]]]:
    """Remove the quotes.

    paragraph (str): Text with code in quotes.
    RETURNS (tuple[str, list[tuple[int, int]]]): The text without them; start and end in it of each piece of code.
    """
    text, offsets, end = "", [], 0
    for quoted in _QUOTED.finditer(paragraph):
        text += paragraph[end : quoted.start()]
        offsets.append((len(text), len(text) + len(quoted[1])))
        text += quoted[1]
        end = quoted.end()
    return text + paragraph[end:], offsets
