"""Which example each row of an array belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy
import torch
from torch import Tensor


class Rows:
    """The owners of the rows of an array.

    owner (numpy.ndarray): The index of each row's example in the batch. Shape: (number of rows,)
    n (int): The number of examples.
    reach (int): How many neighbours on each side a layer may still mix into a row, before it sees another example.
    """

    def __init__(self, owner: numpy.ndarray, n: int, *, reach: int = 0):
        self.owner = owner
        self.n = n
        self.reach = reach
        self._blocks: list[tuple[Tensor, Tensor]] | None = None
        self._index: Tensor | None = None

    @classmethod
    def of(cls, lengths: Sequence[int] | numpy.ndarray, *, pad: int = 0) -> Rows:
        """Rows of sequences, one per example. pad (int): Rows before, between and after them, of which each sequence
        owns half of those between; empty sequences have none, as in thinc's `flatten`.
        """
        counts = numpy.asarray(lengths, dtype="int64")
        n = len(counts)
        if pad and (filled := numpy.flatnonzero(counts)).size:
            counts = counts.copy()
            counts[filled] += pad  # half before, half after
            counts[filled[0]] += pad // 2
            counts[filled[-1]] += pad // 2
        return cls(numpy.repeat(numpy.arange(n), counts), n, reach=pad // 2)

    def __len__(self) -> int:
        return len(self.owner)

    def after(self, window: int) -> Rows:
        """The same rows after a layer that mixes in `window` neighbours on each side."""
        found = Rows(self.owner, self.n, reach=self.reach - window)
        found._blocks, found._index = self._blocks, self._index
        return found

    def index(self, device: torch.device) -> Tensor:
        """The owners as a tensor."""
        if self._index is None or self._index.device != device:
            self._index = torch.from_numpy(self.owner).to(device)
        return self._index

    def sums(self, values: Tensor) -> Tensor:
        """The sum of rows by example. values (Tensor): Shape: (rows, ...). RETURNS (Tensor): Shape: (n, ...)."""
        found = values.new_zeros((self.n, *values.shape[1:]))
        return found.index_add_(0, self.index(values.device), values)

    def blocks(self, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """The rows as few matrices: examples of similar lengths together.

        RETURNS (list): For each, indices of rows, and those of the examples. An index beyond the last row is padding.
            Shapes: (examples, longest), (examples,)
        """
        if self._blocks is None or (self._blocks and self._blocks[0][0].device != device):
            self._blocks = [
                (torch.from_numpy(index).to(device), torch.from_numpy(which).to(device))
                for index, which in self._grouped()
            ]
        return self._blocks

    def _grouped(self) -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
        order = numpy.argsort(self.owner, kind="stable")
        counts = numpy.bincount(self.owner, minlength=self.n)
        starts = numpy.cumsum(counts) - counts
        by_length = numpy.argsort(counts, kind="stable")
        by_length = by_length[counts[by_length] > 0]
        order = numpy.append(order, len(order))
        first = 0
        while first < len(by_length):
            # A third more padding at most, or a few rows.
            most = counts[by_length[first]] * 4 // 3 + 4
            last = int(numpy.searchsorted(counts[by_length], most, side="right"))
            which = by_length[first:last]
            steps = numpy.arange(counts[which].max())
            inside = steps < counts[which][:, None]
            yield order[numpy.where(inside, starts[which][:, None] + steps, len(order) - 1)], which
            first = last
