"""Split a batch between ranks, so that each gets about the same number of words.

Ranks wait for the slowest one at each step. Separate batches of one size in words would differ by some percent; equal
parts of one batch do not.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TypeVar

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
