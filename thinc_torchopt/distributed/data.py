"""Who trains on what: a batch of all ranks, dealt so that each gets about as many words.

Ranks wait for the slowest at each step. Batches of one size in words still differ by some percent, and parts of equal
size do not.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TypeVar

T = TypeVar("T", bound=Sized)


def deal(batch: Sequence[T], ranks: int) -> list[list[T]]:
    """Deal a batch: the longest first, each to the rank with the fewest words so far.

    batch (Sequence[Example]): Of all ranks together.
    RETURNS (list[list[Example]]): The part of each rank, in the order of the batch. All the same on each rank; some are
        empty if there are fewer examples than ranks.
    """
    words = [0] * ranks
    chosen: list[list[int]] = [[] for _ in range(ranks)]
    for i in sorted(range(len(batch)), key=lambda i: (-len(batch[i]), i)):
        rank = min(range(ranks), key=lambda rank: (words[rank], len(chosen[rank]), rank))
        words[rank] += len(batch[i])
        chosen[rank].append(i)
    return [[batch[i] for i in sorted(part)] for part in chosen]
