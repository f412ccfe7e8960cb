"""Split a corpus into texts to train on and texts to evaluate on, by documents."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from spacy.tokens import DocBin
from spacy.training.corpus import walk_corpus

from ...core.errors import ConfigError


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
