"""Split the work between ranks: a batch, and the documents of an evaluation.

Ranks wait for the slowest one at each step. Separate batches of one size in words would differ by some percent; equal
parts of one batch do not.

At an evaluation, each rank processes a part of the documents, and all ranks get all of them back. Scores are computed
over all documents, so they equal those of one process. Documents of other ranks come without their `tensor`, which
spaCy's scorers don't use. Of their `user_data`, which has extension attributes, only numbers, texts, lists, tuples,
sets and dicts are sent: transformers store their whole output there.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

from spacy.language import Language
from spacy.tokens import Doc

from ...core.errors import DistributedError
from .group import RankGroup

T = TypeVar("T", bound=Sized)


def deal(batch: Sequence[T], ranks: int) -> list[list[T]]:
    """Split a batch: the longest examples first, each to the rank with the fewest words so far.

    batch (Sequence[Example]): The batch of all ranks.
    RETURNS (list[list[Example]]): The part of each rank, in the order of the batch. Equal on all ranks. With fewer
        examples than ranks, some parts are empty.
    """
    words = [0] * ranks
    chosen: list[list[int]] = [[] for _ in range(ranks)]
    for i in sorted(range(len(batch)), key=lambda i: (-len(batch[i]), i)):
        rank = min(range(ranks), key=lambda rank: (words[rank], len(chosen[rank]), rank))
        words[rank] += len(batch[i])
        chosen[rank].append(i)
    return [[batch[i] for i in sorted(part)] for part in chosen]


# ---------------------------------------------------------------------- an evaluation


@contextmanager
def sharing_pipe(nlp: Language, group: RankGroup) -> Iterator[None]:
    """Share `nlp.pipe` between the ranks. All ranks must call it with the same documents.

    RAISES (DistributedError): The documents differ.
    """
    original: Any = nlp.pipe

    def pipe(texts: Any, *, as_tuples: bool = False, batch_size: int | None = None, **options: Any) -> Iterator[Any]:
        docs = list(texts)
        if as_tuples or not all(isinstance(doc, Doc) for doc in docs):
            yield from original(docs, as_tuples=as_tuples, batch_size=batch_size, **options)
            return
        parts = split_documents(len(docs), group.size, nlp.batch_size if batch_size is None else batch_size)
        own = parts[group.rank]
        done = dict(zip(own, original([docs[i] for i in own], batch_size=batch_size, **options)))
        texts = "\n".join(doc.text for doc in docs).encode("utf8")
        found = group.gather((zlib.crc32(texts), [_sent(done[i]) for i in own]))
        for rank, (part, (checksum, contents)) in enumerate(zip(parts, found)):
            if checksum != found[0][0]:
                raise DistributedError(
                    f"Can't share an evaluation: rank {rank} reads other development data than rank 0. It must be "
                    "the same on all machines. Or set share_evaluation = false in [training.optimizer.distributed]: "
                    "then rank 0 evaluates alone."
                )
            for i, (content, user_data) in zip(part, contents):
                if i not in done:
                    done[i] = Doc(nlp.vocab, user_data=user_data).from_bytes(content, exclude=["user_data"])
        yield from (done[i] for i in range(len(docs)))

    nlp.pipe = pipe  # type: ignore[method-assign]
    try:
        yield
    finally:
        del nlp.pipe


def _sent(doc: Doc) -> tuple[bytes, dict[Any, Any]]:
    """The parts of a document to send."""
    user_data = {key: value for key, value in doc.user_data.items() if _is_plain((key, value))}
    return doc.to_bytes(exclude=["tensor", "user_data"]), user_data


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, bytes))


def split_documents(n: int, ranks: int, batch_size: int) -> list[list[int]]:
    """The documents of each rank: whole batches, as in one process; smaller ones if there are fewer batches than
    ranks.
    """
    size = max(1, min(batch_size, math.ceil(n / ranks)))
    return [[i for i in range(n) if i // size % ranks == rank] for rank in range(ranks)]
