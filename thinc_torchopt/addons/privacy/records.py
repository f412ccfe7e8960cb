"""Records of layers in place of their gradients: enough for the norm of each example's part, and for a weighted sum.

A record is of one param in one call of its layer. `norms` has the squared norms of the examples' gradients, `sum` the
sum of the gradients times a factor each. Several calls of a layer are joined to one first.

SOURCE: Goodfellow 2015 (https://arxiv.org/abs/1510.01799), and book-keeping as in Bu et al. 2023
    (https://arxiv.org/abs/2210.00038).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor


class Rows:
    """The owners of the rows of an array.

    owner (numpy.ndarray): The index of each row's example in the batch. Shape: (number of rows,)
    n (int): The number of examples.
    reach (int): How many neighbours on each side a layer may still mix into a row, before it sees another example.
    """

    def __init__(self, owner: numpy.ndarray, n: int, reach: int):
        self.owner = owner
        self.n = n
        self.reach = reach
        self._blocks: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
        self._index: dict[torch.device, Tensor] = {}

    @classmethod
    def of(cls, lengths: Sequence[int] | numpy.ndarray, *, pad: int = 0) -> Rows:
        """Rows of sequences, one per example. pad (int): Rows before, between and after them, of which each sequence
        owns half of those between; empty sequences have none, as in thinc's `flatten`.
        """
        counts = numpy.array(lengths, dtype="int64")
        n = len(counts)
        if pad and (filled := numpy.flatnonzero(counts)).size:
            # Half of it before and half after each, and twice at both ends.
            numpy.add.at(counts, [*filled, *filled, filled[0], filled[-1]], pad // 2)
        return cls(numpy.repeat(numpy.arange(n), counts), n, pad // 2)

    def __len__(self) -> int:
        return len(self.owner)

    def after(self, window: int) -> Rows:
        """The same rows after a layer that mixes in `window` neighbours on each side."""
        found = Rows(self.owner, self.n, self.reach - window)
        found._blocks, found._index = self._blocks, self._index
        return found

    def joined(self, records: Sequence[Any]) -> Rows:
        """Those of some records of the same examples, one after the other."""
        return Rows(numpy.concatenate([one.rows.owner for one in records]), self.n, self.reach)

    def index(self, device: torch.device) -> Tensor:
        """The owners as a tensor."""
        if device not in self._index:
            self._index[device] = torch.from_numpy(self.owner).to(device)
        return self._index[device]

    def sums(self, values: Tensor) -> Tensor:
        """The sum of rows by example. values (Tensor): Shape: (rows, ...). RETURNS (Tensor): Shape: (n, ...)."""
        found = values.new_zeros((self.n, *values.shape[1:]))
        return found.index_add_(0, self.index(values.device), values)

    def blocks(self, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """The rows as few matrices: examples of similar lengths together.

        RETURNS (list): For each, indices of rows, and those of the examples. An index beyond the last row is padding.
            Shapes: (examples, longest), (examples,)
        """
        if device not in self._blocks:
            self._blocks[device] = [
                (torch.from_numpy(index).to(device), torch.from_numpy(which).to(device))
                for index, which in self._grouped()
            ]
        return self._blocks[device]

    def _grouped(self) -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
        order = numpy.argsort(self.owner, kind="stable")
        counts = numpy.bincount(self.owner, minlength=self.n)
        starts = numpy.cumsum(counts) - counts
        by_length = numpy.argsort(counts, kind="stable")
        order = numpy.append(order, len(order))
        while len(by_length):
            # A third more padding at most, or a few rows.
            most = counts[by_length[0]] * 4 // 3 + 4
            last = int(numpy.searchsorted(counts[by_length], most, side="right"))
            which, by_length = by_length[:last], by_length[last:]
            steps = numpy.arange(counts[which].max())
            inside = steps < counts[which][:, None]
            yield order[numpy.where(inside, starts[which][:, None] + steps, len(order) - 1)], which


class Record(Protocol):
    """See above. rows (Rows): Whose rows they are."""

    rows: Rows

    def norms(self) -> Tensor:
        """Squared norms. Shape: (examples,)"""

    def sum(self, factors: Tensor) -> Tensor:
        """factors (Tensor): Shape: (examples,). RETURNS (Tensor): As many numbers as the param has."""

    def make_finite(self) -> None:
        """Put numbers in place of infinities and NaN: of examples with a factor of 0."""

    def joined(self, others: Sequence[Any]) -> Record:
        """One record in place of this and others of the same param."""


class Product:
    """A matrix W with dW = dY^T X.

    X, dY (Tensor): Shapes: (rows, nI), (rows, nO)
    """

    def __init__(self, rows: Rows, X: Tensor, dY: Tensor):
        self.rows = rows
        self.X = X
        self.dY = dY

    def norms(self) -> Tensor:
        # Rows of padding are the last one, of zeros.
        X, dY = (torch.cat([values, values.new_zeros(values.shape[1])[None]]) for values in (self.X, self.dY))
        found = X.new_zeros(self.rows.n)
        for index, which in self.rows.blocks(X.device):
            x, d = X[index], dY[index]
            if index.shape[1] * (x.shape[2] + d.shape[2]) >= x.shape[2] * d.shape[2]:
                norms = torch.bmm(d.transpose(1, 2), x).square_().sum((1, 2))
            else:  # by two Gram matrices; a sum may be just below 0
                norms = (torch.bmm(x, x.transpose(1, 2)).mul_(torch.bmm(d, d.transpose(1, 2)))).sum((1, 2)).clamp_(0.0)
            found[which] = norms
        return found

    def sum(self, factors: Tensor) -> Tensor:
        factors = factors.to(self.dY)
        return (self.dY * factors[self.rows.index(self.dY.device)][:, None]).T @ self.X

    def make_finite(self) -> None:
        self.X, self.dY = self.X.nan_to_num(), self.dY.nan_to_num()

    def joined(self, others: Sequence[Product]) -> Product:
        every = [self, *others]
        X, dY = torch.cat([one.X for one in every]), torch.cat([one.dY for one in every])
        return Product(self.rows.joined(every), X, dY)


class Terms:
    """A param with a gradient that is a sum of terms, one for each row.

    terms (Tensor): Shape: (rows, size of the param)
    """

    def __init__(self, rows: Rows, terms: Tensor):
        self.rows = rows
        self.terms = terms
        self._sums: Tensor | None = None

    @property
    def sums(self) -> Tensor:
        if self._sums is None:
            self._sums = self.rows.sums(self.terms)
        return self._sums

    def norms(self) -> Tensor:
        return self.sums.square().sum(1)

    def sum(self, factors: Tensor) -> Tensor:
        return factors.to(self.sums) @ self.sums

    def make_finite(self) -> None:
        self.sums.nan_to_num_()

    def joined(self, others: Sequence[Terms]) -> Terms:
        every = [self, *others]
        return Terms(self.rows.joined(every), torch.cat([one.terms for one in every]))


class Lookup:
    """A table of which each row looks up some entries, and takes their sum.

    keys (Tensor): Shape: (rows, entries per row). dY (Tensor): Shape: (rows, width). size (int): Entries of the table.
    """

    def __init__(self, rows: Rows, keys: Tensor, dY: Tensor, size: int):
        self.rows = rows
        self.keys = keys
        self.dY = dY
        self.size = size
        self._by_entry: tuple[Tensor, Tensor, Tensor] | None = None

    def by_entry(self) -> tuple[Tensor, Tensor, Tensor]:
        """For each pair of an example and an entry that it looks up: both, and the gradient."""
        if self._by_entry is None:
            n_keys = self.keys.shape[1]
            pairs = (self.rows.index(self.dY.device)[:, None] * self.size + self.keys).reshape(-1)
            unique, inverse = torch.unique(pairs, return_inverse=True)
            grads = self.dY.new_zeros((len(unique), self.dY.shape[1]))
            inverse = inverse.reshape(-1, n_keys)
            for i in range(n_keys):
                grads.index_add_(0, inverse[:, i], self.dY)
            self._by_entry = unique // self.size, unique % self.size, grads
        return self._by_entry

    def norms(self) -> Tensor:
        owner, _, grads = self.by_entry()
        return grads.new_zeros(self.rows.n).index_add_(0, owner, grads.square().sum(1))

    def sum(self, factors: Tensor) -> Tensor:
        owner, entry, grads = self.by_entry()
        found = grads.new_zeros((self.size, grads.shape[1]))
        return found.index_add_(0, entry, grads * factors.to(grads)[owner][:, None])

    def make_finite(self) -> None:
        self.by_entry()[2].nan_to_num_()

    def joined(self, others: Sequence[Lookup]) -> Lookup:
        every = [self, *others]
        keys, dY = torch.cat([one.keys for one in every]), torch.cat([one.dY for one in every])
        return Lookup(self.rows.joined(every), keys, dY, self.size)
