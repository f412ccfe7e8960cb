"""Cells that a param got in its middle, where others have them at the end: its state has to follow them.

The outputs of a span categorizer end with the one for "none of the labels", so rows for new labels are inserted before
it. The output layer of an ensemble for text categories reads the scores of a bag of words first, and then a vector of
the text: columns for new scores are inserted between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch


class Insertion(NamedTuple):
    """Cells that were inserted into a param of a node.

    param (str): Its name in the node. axis (int): The dimension.
    at (int): The index of the first one. number (int): How many.
    size (int): The size of the dimension before.
    """

    param: str
    axis: int
    at: int
    number: int
    size: int


class Order(NamedTuple):
    """Where the cells of a param are that has grown.

    axis (int): The dimension. cells (tuple[int, ...]): The index of each: of the old ones in their order, then of the
        new ones.
    """

    axis: int
    cells: tuple[int, ...]

    def old_first(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor with the new cells at the end."""
        return tensor.index_select(self.axis, self._index(tensor))

    def in_place(self, tensor: torch.Tensor, axis: int | None = None) -> torch.Tensor:
        """A copy of a tensor that has the new cells at the end, with each at its place. axis (int | None): Its
        dimension, if it lacks one of the param's.
        """
        return tensor.index_select(self.axis if axis is None else axis, self._index(tensor).argsort())

    def _index(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.cells, device=tensor.device)


def order_after(insertions: Iterable[Insertion], param: str, old: Sequence[int], new: Sequence[int]) -> Order | None:
    """Where the cells of a param are now.

    insertions (Iterable[Insertion]): All into its node, in their order.
    param (str): Its name in the node. old, new (Sequence[int]): Its shapes before and now.
    RETURNS (Order | None): None: new cells are at the end, or insertions don't lead from one shape to the other.
    """
    cells: list[int | None] = []
    axis = -1
    for one in insertions:
        if one.param != param or one.axis >= min(len(old), len(new)):
            continue
        if not cells and one.size == old[one.axis] != new[one.axis]:
            axis, cells = one.axis, list(range(one.size))
        if cells and one.axis == axis and one.size == len(cells):
            cells[one.at : one.at] = [None] * one.number
        if cells and len(cells) == new[axis]:
            return Order(
                axis,
                (
                    *(i for i, cell in enumerate(cells) if cell is not None),
                    *(i for i, cell in enumerate(cells) if cell is None),
                ),
            )
    return None
