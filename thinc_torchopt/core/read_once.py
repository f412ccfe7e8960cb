"""Corpora that spaCy reads several times, read once.

`spacy train` reads the training data for the labels of each component, and for the first epoch; the development data at
each evaluation. Each time, it decodes and tokenizes all texts, though nothing has changed. `ReadOnce` stands for a
reader, and gives the same examples. It is for spaCy's own reader of files without an augmenter: others may draw random
numbers, or wait for data. Files and a tokenizer that have changed meanwhile are read again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any
from weakref import WeakKeyDictionary

from spacy.language import Language
from spacy.tokenizer import Tokenizer
from spacy.training import Example
from spacy.training.augment import dont_augment
from spacy.training.corpus import FILE_TYPE, Corpus, walk_corpus
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_evaluation_callback, create_train_batches
from srsly.msgpack import msgpack_decoders

Reader = Callable[[Language], Iterable[Example]]

# Their components leave texts and annotations as they are.
THEIRS = ("spacy.", "spacy_transformers.", "spacy_curated_transformers.")


class ReadOnce:
    """A reader that reads once, and again only if the files or the tokenizer have changed.

    reader (Corpus): spaCy's reader, one that `can_be_kept`.
    """

    def __init__(self, reader: Corpus):
        self.reader = reader
        self._examples: list[Example] = []
        self._read_from: tuple[Any, ...] | None = None

    def __call__(self, nlp: Language) -> list[Example]:
        """The same examples each time, in a new list. Who changes them must take copies."""
        source = _source(self.reader, nlp)
        if source is None or self._read_from != source:
            with _decoders_at_hand():
                self._examples = list(self.reader(nlp))
            self._read_from = source
        return list(self._examples)

    def copies(self, nlp: Language) -> Iterator[Example]:
        """The examples, with copies of the texts to annotate."""
        for example in self(nlp):
            yield Example(example.predicted.copy(), example.reference)

    def is_for(self, reader: Any) -> bool:
        """Whether another reader reads the same."""
        return can_be_kept(reader) and vars(reader) == vars(self.reader)


def can_be_kept(reader: Any) -> bool:
    """Whether reading a corpus once more changes nothing: files, without an augmenter, and in their order."""
    return type(reader) is Corpus and reader.augmenter is dont_augment and not reader.shuffle


def as_in_files(reader: Any) -> Reader | None:
    """A reader of the same examples at each reading, without those of an augmenter. None: it is no reader of spaCy's
    files, and may not be read once more.
    """
    if type(reader) is not Corpus:
        return reader if isinstance(reader, ReadOnce) else None
    plain = copy(reader)
    plain.augmenter, plain.shuffle = dont_augment, False
    return plain


def _source(reader: Corpus, nlp: Language) -> tuple[Any, ...] | None:
    """All that examples are made from, to be compared. None: unknown, so they must be read again."""
    tokenizer: Any = nlp.tokenizer
    if type(tokenizer) is not Tokenizer or getattr(nlp.make_doc, "__func__", None) is not Language.make_doc:
        return None
    try:
        files = [(path, path.stat()) for path in walk_corpus(reader.path, FILE_TYPE)]
    except OSError:
        return None  # the reader will tell it
    stamps = [(path, stat.st_mtime_ns, stat.st_size, stat.st_ino) for path, stat in files]
    rules = {word: [*tokens] for word, tokens in tokenizer.rules.items()}
    searches = tokenizer.prefix_search, tokenizer.suffix_search, tokenizer.infix_finditer
    matches = tokenizer.token_match, tokenizer.url_match, tokenizer.faster_heuristics
    return nlp.vocab, stamps, tokenizer, rules, searches, matches


@contextmanager
def _decoders_at_hand() -> Iterator[None]:
    """Inside, decoding does not search the entry points of all installed packages again for each text.

    SOURCE: srsly/msgpack/__init__.py, `unpackb`; catalogue, `Registry.get_all`.
    """
    get_all = msgpack_decoders.get_all
    found = get_all()
    msgpack_decoders.get_all = lambda: found
    try:
        yield
    finally:
        msgpack_decoders.get_all = get_all


# ---------------------------------------------------------------------- between initialization and training

# The training data that pipelines were initialized with, until their training begins.
_kept: WeakKeyDictionary[Language, ReadOnce] = WeakKeyDictionary()


def read_once_in_initialize(nlp: Language, get_examples: Any) -> Any:
    """Replace spaCy's function that reads the training data for `Language.initialize` by one that reads it once: for
    all components, and for the training that follows. Any other function is returned as it is.

    SOURCE: spacy/training/initialize.py, `init_nlp`.
    """
    _kept.pop(nlp, None)
    reader = _train_reader_of(get_examples)
    if not can_be_kept(reader) or not _is_plain(nlp):
        return get_examples
    kept = _kept[nlp] = ReadOnce(reader)
    return lambda: kept.copies(nlp)


def _train_reader_of(get_examples: Any) -> Any:
    """The reader of the training data. None: the function is not spaCy's, or the data is streamed."""
    code: Any = getattr(get_examples, "__code__", None)
    is_spacys = code is not None and code in inspect.unwrap(init_nlp).__code__.co_consts
    if not is_spacys or code.co_freevars != ("nlp", "train_corpus"):
        return None
    return inspect.getclosurevars(get_examples).nonlocals["train_corpus"]


def _is_plain(nlp: Language) -> bool:
    """Whether only code of spaCy and its transformers sees the examples while the pipeline is initialized."""
    settings = nlp.config["initialize"]
    parts = [pipe for _, pipe in nlp.pipeline if hasattr(pipe, "initialize")]
    are_theirs = all(type(part).__module__.startswith(THEIRS) for part in parts)
    return are_theirs and settings["before_init"] is None and settings["after_init"] is None


def batches_of_kept(train_data: Any) -> Any:
    """spaCy's batches, that draw from what was read when the pipeline was initialized. Others are returned as they are.

    SOURCE: spacy.training.loop.create_train_batches
    """
    is_spacys = inspect.isgenerator(train_data) and train_data.gi_code is create_train_batches.__code__
    if not is_spacys or inspect.getgeneratorstate(train_data) != inspect.GEN_CREATED:
        return train_data
    found = inspect.getgeneratorlocals(train_data)  # the arguments
    if not found.keys() >= {"nlp", "corpus", "max_epochs"}:
        return train_data  # another version's
    kept = _kept.pop(found["nlp"], None)
    if kept is None or found["max_epochs"] < 0 or not kept.is_for(found["corpus"]):
        return train_data
    return create_train_batches(**{**found, "corpus": kept})


# ---------------------------------------------------------------------- evaluations


def dev_reader_of(evaluate: Any) -> Reader | None:
    """The reader of the development data, in spaCy's own evaluation. None: this is another one.

    SOURCE: spacy.training.loop.create_evaluation_callback
    """
    if getattr(evaluate, "__qualname__", "") != f"{create_evaluation_callback.__name__}.<locals>.evaluate":
        return None
    found: Reader | None = inspect.getclosurevars(evaluate).nonlocals.get("dev_corpus")
    return found


def evaluation_of_kept(nlp: Language, evaluate: Any) -> Any:
    """spaCy's evaluation, that reads the development data once. Another one is returned as it is."""
    reader: Any = dev_reader_of(evaluate)
    parts = [(type(pipe), getattr(pipe, "scorer", None)) for _, pipe in nlp.pipeline if hasattr(pipe, "score")]
    modules = [str(getattr(one, "__module__", "spacy.")) for part in parts for one in part]
    # A scorer of the user may change the annotations.
    if not can_be_kept(reader) or not all(module.startswith(THEIRS) for module in modules):
        return evaluate
    found = inspect.getclosurevars(evaluate).nonlocals
    if found.keys() != {"nlp", "dev_corpus", "weights"}:
        return evaluate  # another version's
    return create_evaluation_callback(found["nlp"], ReadOnce(reader), found["weights"])
