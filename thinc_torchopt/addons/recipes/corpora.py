"""Read the corpora of a config, and say where a training on one should end: one formula for all pipelines.

It was fitted on the choosing tasks of benchmarks/score.py, and confirmed on the others: docs/recipes.md.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.training.corpus import walk_corpus
from spacy.util import dot_to_object, registry, resolve_dot_names

from ...core.config_checks import check_corpora, leaves_out
from ...core.errors import ConfigError, TorchOptError
from ...core.host_errors import line_of_others, plain_error
from ...core.kinds import Spans, kind_in, survey
from ...core.params import escape, trainable_components
from ...loop.data_stream import batcher_of

Reader = Callable[[Language], Iterable[Example]]
Setting = Literal["train_corpus", "dev_corpus"]

_READER = "@readers"
# The end of a training: epochs, and its least and most steps.
EPOCHS = 5
LEAST = 600
MOST = 20_000
# If a component learns from a part of the texts alone, the least steps grow by the inverse of their share of the words,
# but not for a share below this one. Fitted on one corpus: benchmarks/README.md.
LEAST_SHARE = 0.2
# A span categorizer learns from the few of its suggestions that are spans. With rare spans there are more epochs, until
# so many were seen, each as often as there are epochs; but not more epochs than this. Fitted on one corpus:
# benchmarks/README.md.
SPANS_SEEN = 8_000
MOST_EPOCHS = 20
# Of a batch that is to have several texts: single texts may have 50,000, and all are in memory at once.
MOST_WORDS = 4_000
_EVALUATIONS = 10


def read_corpus(
    nlp: Language,
    config: Mapping[str, Any],
    setting: Setting,
    *,
    purpose: str = "train",
    limit: int | None = None,
) -> list[Example]:
    """Read a corpus of a config.

    config (Mapping): Interpolated.
    purpose (str): The verb for the error message: "train".
    limit (int | None): The most texts to read.
    RAISES (ConfigError): It has no path, can't be read, or is empty.
    """
    name = config["training"][setting]
    where = f"[{name}]"
    check_corpora(nlp.config, [setting])
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            examples = list(islice(_reader(config, name)(nlp), limit))
    except TorchOptError:
        raise
    except Exception as error:  # a user's reader may raise anything
        if (plain := plain_error(error, config)) is not None and str(plain) != str(error):
            raise plain from error
        found = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.strerror:
            found = f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror
        line = line_of_others(error)
        at = f" at {line}. Correct the reader or its data." if line else ". Check the path of the corpus."
        raise ConfigError(f"Can't {purpose}: expected texts in {where}, found: {found.rstrip('.')}{at}") from error
    for warning in caught:
        if "[W090]" not in str(warning.message):  # no files: reported below
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if not examples:
        at = _path_of(config, name)
        raise ConfigError(
            f"Can't {purpose}: expected texts in {where}, found none{f' at {at!r}' if at else ''}."
            f"{leaves_out(config, name) or ' Check the path of the corpus, and whether its reader leaves texts out.'}"
        )
    return examples


def _reader(config: Mapping[str, Any], name: str) -> Reader:
    """Resolve this corpus alone: spaCy's function resolves a whole section, where another corpus may have no path."""
    try:
        block = dot_to_object(config, name)  # type: ignore[arg-type]
    except KeyError:
        block = None
    if isinstance(block, Mapping) and _READER in block:
        reader: Reader = registry.resolve({"corpus": dict(block)})["corpus"]
    else:  # a function gives several corpora
        [reader] = resolve_dot_names(config, [name])  # type: ignore[arg-type]
    return reader


def _path_of(config: Mapping[str, Any], name: str) -> str:
    try:
        return str(dot_to_object(config, f"{name}.path"))  # type: ignore[arg-type]
    except KeyError:
        return ""


# ---------------------------------------------------------------------- the end of a training


@dataclass(frozen=True)
class End:
    """The end of a training.

    steps (int): Length in steps, a multiple of `eval_every`: otherwise spaCy does not evaluate the last step.
    eval_every (int): Steps from one evaluation to the next.
    size (int): `size` in [training.batcher], if batches are to have so many words. 0: they stay as they are.
    words (float): Words of a batch, on average.
    texts (float): Texts of a batch, on average.
    spans (float): Annotated spans of a batch, on average: of the span categorizer that has the fewest. Infinite:
        none has any.
    reason (str): Why the training ends there, in words.
    """

    steps: int
    eval_every: int
    size: int
    words: float
    texts: float
    spans: float
    reason: str


def find_end(
    nlp: Language,
    words: int = 0,
    texts: int = 0,
    *,
    batcher: Mapping[str, Any] | None = None,
    epochs: int = EPOCHS,
    more: float = 0.0,
) -> End:
    """Count the steps of some epochs, or of more where spans are rare, within bounds.

    nlp (Language): The pipeline, with its config filled in. It need not be initialized.
    words (int): Words of a batch. 0: as [training.batcher] says.
    texts (int): Texts of a batch at least, on average: where they are long, it has more words.
    batcher (Mapping | None): In place of [training.batcher]. Empty: that one.
    epochs (int): Of the training, unless spans are rare.
    more (float): Texts that a teacher annotates, for each one of the corpus.
    RAISES (ConfigError): The corpus is streamed, empty or missing.
    """
    config = nlp.config.interpolate()
    training = config["training"]
    if training["max_epochs"] == -1:
        end = f"{steps:,} here" if (steps := training["max_steps"]) else "which must be set then"
        raise ConfigError(
            "Can't find the end of the training: max_epochs = -1 in [training] streams the corpus, so its length is "
            "unknown. If the texts fit in memory, set max_epochs = 0. Otherwise use the recipe robust, and for "
            "learn_rate a block with thinc-torchopt.warmup_linear.v1 and warmup_ratio = 0.1: without total_steps, the "
            f"rate falls to the end of the training, max_steps, {end}."
        )
    examples = read_corpus(nlp, config, "train_corpus", purpose="find the end of the training")
    of_text = sum(len(example) for example in examples) / len(examples)
    size = words and max(words, min(round(texts * of_text), MOST_WORDS))
    block = {**training["batcher"], "size": size} if size else batcher or training["batcher"]
    draw = batcher_of(nlp, {"batcher": block})
    spans = _count_spans(nlp, training["frozen_components"], examples)
    usual = epochs
    if spans is not None:
        epochs = min(max(math.ceil(SPANS_SEEN / (spans * (1 + more))), usual), MOST_EPOCHS)
    batches = list(islice(words_of_batches(draw, examples, epochs), MOST + 1))
    if not batches:
        raise ConfigError(
            f"Can't find the end of the training: expected batches of the texts in [{training['train_corpus']}], found "
            "none: each text is longer than a batch. Set discard_oversize = false in [training.batcher]."
        )
    total = sum(len(example) for example in examples)
    few = f" (more than {usual}, as {spans:,} spans are few)" if epochs > usual else ""
    reason = f"{epochs} epochs{few} over {len(examples):,} texts with {total:,} words"
    reason += f", and {more:g} of the teacher's for each" * bool(more)
    counted = round(len(batches) * (1 + more))
    share, name = _least_share(nlp, training["frozen_components"], examples)
    least = min(math.ceil(LEAST / max(share, LEAST_SHARE)), MOST)
    if counted < least:
        part = f", as '{name}' learns from {share:.0%} of the words" if least > LEAST else ""
        reason = f"the minimum is {least:,}{part}; {reason} would be only {counted:,} steps"
    elif counted > MOST:
        reason = f"the maximum is {MOST:,}; {reason} would be more"
    steps = min(max(counted, least), MOST)
    every = min(training["eval_frequency"], -(-steps // _EVALUATIONS))
    batch = mean(batches) / max(total, 1)  # as a part of the corpus
    spans_of_batch = math.inf if spans is None else spans * batch
    return End(-(-steps // every) * every, every, size, mean(batches), len(examples) * batch, spans_of_batch, reason)


def _count_spans(nlp: Language, frozen: Sequence[str], examples: list[Example]) -> int | None:
    """The annotated spans of the span categorizer that has the fewest, of those that have some. None: none is trained.

    `spancat_singlelabel` is not meant: it has a softmax, whose gradient does not vanish where all outputs are low.
    """
    trained = {name for name, _ in trainable_components(nlp, frozen)}
    keys = [
        nlp.get_pipe(name).key  # type: ignore[attr-defined]
        for name in nlp.pipe_names
        if escape(name) in trained and type(kind_in(nlp, name)) is Spans
    ]
    groups = [example.reference.spans for example in examples]
    counts = (sum(len(group[key]) for group in groups if key in group) for key in keys)
    return min((count for count in counts if count), default=None)


def _least_share(nlp: Language, frozen: Sequence[str], examples: list[Example]) -> tuple[float, str]:
    """The part of the words from which a component learns: the least of all that are trained, and its name.

    Those that learn spans are not meant: a text without a group of spans tells them that it has none.
    """
    trained = {name for name, _ in trainable_components(nlp, frozen)}
    found, shares = survey(examples), [(1.0, "")]
    for name in nlp.pipe_names:
        kind = kind_in(nlp, name)
        words = found.of(kind).words
        if escape(name) in trained and words and not isinstance(kind, Spans):
            shares.append((words / found.words, name))
    return min(shares, key=lambda pair: pair[0])


def words_of_batches(
    batcher: Callable[[Iterable[Example]], Iterable[list[Example]]], examples: list[Example], epochs: int
) -> Iterator[int]:
    """The words of each batch of some epochs. Sizes may grow between epochs, so each epoch is drawn."""
    for _ in range(epochs):
        for batch in batcher(examples):
            yield sum(len(example) for example in batch)


def split_corpus(path: Path, share: float) -> tuple[Path, Path]:
    """Write two parts of a corpus beside it, which have all that it has. Equal texts get into the same part.

    path (Path): A .spacy file, or a folder of them. share (float): The second part's, of all texts.
    RETURNS (tuple[Path, Path]): The files to train and to evaluate on.
    RAISES (ConfigError): There are too few texts; or other files are in the way, which are never overwritten.
    """
    if not 0 < share < 1:
        raise ConfigError(
            f"Can't split the texts: expected a share of them between 0 and 1 for --split, found {share:g}. A fifth is "
            "usual: --split 0.2."
        )
    path = path.resolve()
    bins = [DocBin(store_user_data=True).from_disk(file) for file in walk_corpus(path, ".spacy")]
    texts = [(corpus, i) for corpus in bins for i in range(len(corpus))]
    groups: dict[bytes, list[tuple[DocBin, int]]] = {}
    for corpus, i in texts:
        groups.setdefault(corpus.tokens[i][:, 0].tobytes() + corpus.spaces[i].tobytes(), []).append((corpus, i))
    if len(groups) < 2:
        raise ConfigError(
            f"Can't split the texts of '{path.name}': expected at least two different ones, found {len(groups)}. Are "
            "all texts in one document? Write one document for each."
        )
    shuffled = sorted(groups)
    random.Random(0).shuffle(shuffled)
    wanted = min(max(round(share * len(texts)), 1), len(texts) - 1)
    dev: set[tuple[int, int]] = set()
    for key in shuffled[:-1]:
        if len(dev) >= wanted:
            break
        dev |= {(id(corpus), i) for corpus, i in groups[key]}
    parts = [[(corpus, i) for corpus, i in texts if ((id(corpus), i) in dev) == is_dev] for is_dev in (False, True)]
    stem = path.name if path.is_dir() else path.stem
    files = [path.parent / f"{stem}-split-{name}.spacy" for name in ("train", "dev")]
    contents = [_packed(part) for part in parts]
    for file, content in zip(files, contents):
        if file.exists() and (not file.is_file() or file.read_bytes() != content):
            raise ConfigError(
                f"Can't write '{file}': it already exists, with other texts. To use it, give --paths.train and "
                "--paths.dev instead of --split. Otherwise move it away."
            )
    for file, content in zip(files, contents):
        if not file.exists():
            try:
                file.write_bytes(content)
            except OSError as error:
                raise ConfigError(
                    f"Can't write '{file}' for --split: {error.strerror}. Copy the texts to a folder of yours."
                ) from error
    return files[0], files[1]


def _packed(texts: Sequence[tuple[DocBin, int]]) -> bytes:
    """Some texts as the contents of a file."""
    first = texts[0][0]
    part = DocBin(store_user_data=any(any(corpus.user_data) for corpus, _ in texts))
    part.attrs = first.attrs
    for corpus, i in texts:
        if corpus.attrs != part.attrs:
            raise ConfigError(
                "Can't split the texts: the files were saved with different attributes of tokens. Save all with the "
                "same `attrs` of spaCy's DocBin, or split the texts yourself."
            )
        part.tokens.append(corpus.tokens[i])
        part.spaces.append(corpus.spaces[i])
        part.cats.append(corpus.cats[i])
        part.flags.append(corpus.flags[i])
        part.span_groups.append(corpus.span_groups[i])
        part.user_data.append(corpus.user_data[i] if i < len(corpus.user_data) else None)
        part.strings |= corpus.strings
    return part.to_bytes()
