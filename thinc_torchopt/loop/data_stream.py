"""The batches of a run, and its position in them. A resumed run draws the same batches again.

The data has its own random generators: spaCy shuffles each epoch with Python's `random`, and the parser draws from it
during updates, so the data could not be replayed alone otherwise.
"""

from __future__ import annotations

import inspect
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from confection import Config
from spacy.attrs import DEP, ENT_ID, ENT_IOB, ENT_KB_ID, ENT_TYPE, HEAD, LEMMA, MORPH, ORTH, POS, SENT_START, SPACY, TAG
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.training.loop import create_train_batches
from spacy.util import registry, resolve_dot_names
from thinc.api import fix_random_seed

from ..core.errors import ConfigError
from ..core.read_once import Reader, as_in_files
from ..core.schema import Count, Positive
from ..core.words import count
from .progress_bars import show_progress
from .random_state import GeneratorStates, OwnGenerators, load_generators, read_generators, save_generators

Batch = tuple[int, list[Example]]
Batcher = Callable[[Iterable[Example]], Iterable[list[Example]]]


class Batches:
    """The batches of a run, with a look-ahead. batches (Iterator): Epoch and batch of each step."""

    checksum = 0

    def __init__(self, batches: Iterator[Batch]):
        self._batches = _never_empty(batches)
        self._ahead: deque[Batch] = deque()
        self._max_epochs: int | None = None
        self._first_epoch: int | None = None
        self._in_first_epoch = 0
        self._is_past_first_epoch = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if not self._ahead:
            self._look_ahead()
        return self._ahead.popleft()

    def _look_ahead(self) -> None:
        """Draw one more batch. RAISES (StopIteration): There are no more."""
        epoch, batch = self._draw()
        self._ahead.append((epoch, batch))
        if self._first_epoch is None:
            self._first_epoch = epoch
        self._is_past_first_epoch |= epoch != self._first_epoch
        self._in_first_epoch += not self._is_past_first_epoch

    def _draw(self) -> Batch:
        return next(self._batches)

    def all_examples(self) -> list[Example]:
        """All examples of a corpus in memory. They are read now, as spaCy does before the first batch, and not again.
        Empty: the corpus is streamed, or these are not spaCy's batches.

        SOURCE: spacy.training.loop.create_train_batches
        """
        found = self._locals_of_spacys
        if found.get("max_epochs", -1) < 0:
            return []
        if "examples" in found:
            return _examples_in(found["examples"])
        read = list(found["corpus"](found["nlp"]))
        self._batches = create_train_batches(found["nlp"], lambda nlp: read, found["batcher"], found["max_epochs"])
        return _examples_in(read)

    @property
    def next_epoch(self) -> int | None:
        """The epoch of the next batch, which is drawn early for that. None: there are no more."""
        try:
            if not self._ahead:
                self._look_ahead()
        except StopIteration:
            return None
        return self._ahead[0][0]

    def count_first_epoch(self) -> int:
        """The number of batches in the first epoch. Draws the rest of it early."""
        with suppress(StopIteration):
            while not self._is_past_first_epoch:
                self._look_ahead()
        return self._in_first_epoch

    @property
    def max_epochs(self) -> int | None:
        """`max_epochs` of spaCy's batches. 0: no limit; -1: a streamed corpus. None: these are not spaCy's batches.


        SOURCE: spacy.training.loop.create_train_batches
        """
        # An exhausted generator has no locals.
        self._max_epochs = self._locals_of_spacys.get("max_epochs", self._max_epochs)
        return self._max_epochs

    def identity_of_reader(self, nlp: Language) -> dict[str, str]:
        """Data of the reader of spaCy's batches that no setting tells, such as the weights of a teacher: values by
        names, from its method `identity`. Empty: it has none.
        """
        identity = getattr(self._locals_of_spacys.get("corpus"), "identity", None)
        return dict(identity(nlp)) if callable(identity) else {}

    @property
    def batcher(self) -> Any:
        """The batcher of spaCy's batches, [training.batcher]. None: these are not spaCy's batches."""
        batcher = self._locals_of_spacys.get("batcher")
        return batcher.batcher if isinstance(batcher, _NeverEmpty) else batcher

    @property
    def _locals_of_spacys(self) -> dict[str, Any]:
        return _locals_of_spacys(self._batches)

    def count_steps(self, max_steps: int) -> int:
        """The number of training steps, if `patience` does not end it first. max_steps (int): 0: no limit.

        RAISES (ConfigError): The training has no end, or it is unknown.
        """
        return _count_steps(max_steps, self.max_epochs, self.count_first_epoch)


def count_steps(nlp: Language, config: Config, corpus: Callable[[Language], Iterable[Example]] | None = None) -> int:
    """Count the steps of a training by its config, without training.

    nlp (Language): The pipeline, initialized. config (Config): Its config, interpolated.
    corpus (Callable | None): The training corpus, if it is loaded already.
    RAISES (ConfigError): The training has no end.
    """
    training = config["training"]
    return _count_steps(
        training["max_steps"],
        training["max_epochs"],
        lambda: batches_of(nlp, config, corpus).count_first_epoch(),
    )


def batches_of(nlp: Language, config: Config, corpus: Callable[[Language], Iterable[Example]] | None = None) -> Batches:
    """The batches of a training by its config. nlp, config, corpus: As for `count_steps`."""
    return Batches(spacys_batches(nlp, config, corpus))


def spacys_batches(
    nlp: Language, config: Config, corpus: Callable[[Language], Iterable[Example]] | None = None
) -> Iterator[Batch]:
    """The same, as spaCy draws them."""
    training = config["training"]
    if training["seed"] is not None:
        fix_random_seed(training["seed"])
    batcher: Any = batcher_of(nlp, training)  # spaCy's annotation has examples for batches
    [read] = [corpus] if corpus is not None else resolve_dot_names(config, [training["train_corpus"]])
    batches: Iterator[Batch] = create_train_batches(nlp, read, batcher, training["max_epochs"])
    return batches


def batcher_of(nlp: Language, training: Mapping[str, Any]) -> Batcher:
    """[training.batcher] for a pipeline. training (Mapping): [training], interpolated."""
    return for_pipeline(registry.resolve({"batcher": training["batcher"]})["batcher"], nlp)


def for_pipeline(batcher: Batcher, nlp: Language) -> Batcher:
    """Tell a batcher the pipeline, if it asks for it: by a method `for_pipeline`, which returns another batcher."""
    told = getattr(batcher, "for_pipeline", None)
    found: Batcher = batcher if told is None else told(nlp)
    return found


def _count_steps(max_steps: int, max_epochs: int | None, count_first_epoch: Callable[[], int]) -> int:
    """spaCy makes `max_steps` + 1 steps. All epochs are counted as long as the first."""
    limits = [max_steps + 1] if max_steps else []
    if max_epochs is not None and max_epochs > 0:
        limits.append(max_epochs * count_first_epoch())
    if not limits:
        what = {
            None: "batches that are not spaCy's own, which can't be counted",
            -1: "max_epochs = -1, which streams the corpus without an end",
        }.get(max_epochs, "max_epochs = 0, which means no limit")
        raise ConfigError(
            "Can't find the end of the training for a schedule without total_steps: expected max_steps or max_epochs "
            f"above 0 in [training], found max_steps = 0 and {what}. Set max_steps, or give the schedule total_steps; "
            "inverse_sqrt needs none."
        )
    return min(limits)


def _locals_of_spacys(batches: Any) -> dict[str, Any]:
    """The variables of spaCy's batches. Empty: these are not spaCy's, or are exhausted."""
    is_spacys = inspect.isgenerator(batches) and batches.gi_code is create_train_batches.__code__
    return inspect.getgeneratorlocals(batches) if is_spacys else {}


@dataclass
class _NeverEmpty:
    """A batcher that raises an error after an epoch without a batch, where spaCy's loop would look for one for ever."""

    batcher: Batcher

    def __call__(self, items: Iterable[Example]) -> Iterator[list[Example]]:
        texts = [0]

        def counted() -> Iterator[Example]:
            for texts[0], item in enumerate(items, 1):
                yield item

        batch = None
        for batch in self.batcher(items if isinstance(items, list) else counted()):
            yield batch
        if batch is None:
            n = len(items) if isinstance(items, list) else texts[0]
            found = f"made no batch of {count(n, 'text')}" if n else "got no text"
            raise ConfigError(
                f"Can't train: expected batches of the texts in [training] train_corpus in each epoch, and "
                f"[training.batcher] {found} in the last one. It leaves out texts that are longer than its size if "
                "discard_oversize = true. Set that to false, give a larger size, or correct the reader of the corpus."
            )


def _never_empty(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, made for the pipeline, with an error where an epoch has none."""
    found = _locals_of_spacys(batches)
    if not found or inspect.getgeneratorstate(batches) != inspect.GEN_CREATED:  # type: ignore[arg-type]
        return batches
    batcher = _NeverEmpty(for_pipeline(found["batcher"], found["nlp"]))
    made: Iterator[Batch] = create_train_batches(**{**found, "batcher": batcher})
    return made


# Batches of a corpus in memory that are drawn at once: exchanging the generators takes 20 times as long as a batch.
_AT_ONCE = 32


class DataStream(Batches):
    """The batches of a run, drawn with their own random generators, so that a resumed run gets the same ones.

    batches (Iterator): Epoch and batch of each step. The same generators must give the same batches again. spaCy's
        batches of a corpus in memory are drawn a few at once; others when they are needed, as they may wait for data.
    size (int): Number of batches that are joined to one, for several processes. Fewer at the end of an epoch.

    Public: `position` (number of batches drawn), `checksum` (32 bits, over the texts and annotations of all of them, as
        each was when it was first seen).
    """

    def __init__(self, batches: Iterator[Batch], size: int = 1):
        super().__init__(batches)
        self._start = read_generators()
        self._generators = OwnGenerators(self._start)
        self.position = 0
        self._size = size
        self._drawn: list[list[int]] = []  # runs of equal size: [size, number of batches]
        self._next: Batch | None = None  # the first batch of the next epoch
        self._in_memory: list[Example] | None = None  # None: unknown
        self._checksums: WeakKeyDictionary[Doc, bytes] = WeakKeyDictionary()

    def __next__(self) -> Batch:
        epoch, batch = super().__next__()
        self.position += 1
        if not self._drawn or self._drawn[-1][0] != self._size:
            self._drawn.append([self._size, 0])
        self._drawn[-1][1] += 1
        self.checksum = zlib.crc32(self._checksums_of(_examples_in(batch)), self.checksum)
        return epoch, batch

    def all_examples(self) -> list[Example]:
        """All examples that spaCy has read into memory, in an order given by the generators. Empty: unknown before they
        are drawn, as in a streamed corpus.
        """
        _ = self.next_epoch  # spaCy reads them before the first batch
        return self._in_memory or []

    def _look_ahead(self) -> None:
        with self._generators:
            super()._look_ahead()
            if self._in_memory is None:
                self._in_memory = self._read_by_spacy()
                self._checksums_of(self._in_memory)
            if self._in_memory:
                with suppress(StopIteration):
                    for _ in range(_AT_ONCE - 1):
                        super()._look_ahead()

    def _read_by_spacy(self) -> list[Example]:
        """The corpus in memory. Empty: it is streamed, or these are not spaCy's batches.

        SOURCE: spacy.training.loop.create_train_batches
        """
        return [] if self.max_epochs == -1 else _examples_in(self._locals_of_spacys.get("examples"))

    def _checksums_of(self, examples: list[Example]) -> bytes:
        """The checksum of each example. Looks at each once."""
        known, found = self._checksums, []
        for example in examples:
            doc = example.reference
            checksum = known.get(doc)
            if checksum is None:
                checksum = known[doc] = _checksum(doc).to_bytes(4, "little")
            found.append(checksum)
        return b"".join(found)

    def _draw(self) -> Batch:
        if self._size == 1 and self._next is None:
            return super()._draw()
        epoch, first = self._next or super()._draw()
        self._next, drawn = None, list(first)
        for _ in range(self._size - 1):
            self._next = next(self._batches, None)
            if self._next is None or self._next[0] != epoch:
                break
            drawn += self._next[1]
            self._next = None
        return epoch, drawn

    def snapshot(self) -> StreamState:
        """The position, for saving."""
        sizes = [(size, n) for size, n in self._drawn]
        return StreamState(save_generators(self._start), self.position, self.checksum, sizes)

    def go_on_from(self, saved: StreamState, *, progress_bar: bool = False) -> bool:
        """Skip the batches that the saved run has drawn. Before any is drawn.

        progress_bar (bool): Show a progress bar, as much data takes minutes.
        RETURNS (bool): Whether they are the same.
        """
        self._start = load_generators(saved.start)
        self._generators = OwnGenerators(self._start)
        with (
            suppress(StopIteration),
            show_progress(saved.position, "Reading past batches", wanted=progress_bar) as bar,
            self._generators,
        ):
            wanted = self._size
            for self._size, n in saved.sizes:
                for _ in range(n):
                    super()._look_ahead()  # no further, as the next one may have another size
                    next(self)
                    bar.update()
            self._size = wanted
        return (self.position, self.checksum) == (saved.position, saved.checksum)


@dataclass
class StreamState:
    """The saved position of a stream: generators at its start, number and checksum of the batches drawn, and runs of
    (size, number of batches).
    """

    start: GeneratorStates
    position: Count
    checksum: int
    sizes: list[tuple[Positive, Count]]


def identity_of_texts(reader: Reader | None, nlp: Language) -> dict[str, str]:
    """The texts of a reader, in any order, with their annotations: a summary, by its name. Empty: they may not be read
    for that, or there is no reader.
    """
    reader = as_in_files(reader)
    if reader is None:
        return {}
    found = sorted(checksums_of(reader(nlp)))
    return {"texts": f"{len(found)} with checksum {zlib.crc32(repr(found).encode('utf8')):08x}"}


def checksums_of(examples: Iterable[Example]) -> list[int]:
    """A checksum of each example's text and annotations."""
    return [_checksum(example.reference) for example in examples]


def _examples_in(batch: Any) -> list[Example]:
    """The examples in a batch. In a user's own loop, a batch may be anything."""
    return [example for example in batch if isinstance(example, Example)] if isinstance(batch, (list, tuple)) else []


_OF_TOKENS = [ORTH, SPACY, TAG, POS, MORPH, LEMMA, DEP, HEAD, SENT_START, ENT_IOB, ENT_TYPE, ENT_KB_ID, ENT_ID]


def _checksum(doc: Doc) -> int:
    """A checksum of a document with its annotations, equal in every process."""
    spans = {
        key: [(span.start_char, span.end_char, span.label_, span.kb_id_, span.id_) for span in group]
        for key, group in doc.spans.items()
    }
    of_tokens = zlib.crc32(doc.to_array(_OF_TOKENS).tobytes())
    return zlib.crc32(repr((sorted(doc.cats.items()), sorted(spans.items()))).encode("utf8"), of_tokens)
