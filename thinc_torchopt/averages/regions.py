"""Regions of an average whose param has grown: cells that were added together, and how many values were averaged in
them.

An average begins, and warms up, by the number of values that it took. When labels come, old rows have taken hundreds
and new ones none: so each region counts for itself. Old cells go on as if nothing had happened.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..schema import Count, refuse

Shape = Sequence[int]


@dataclass
class Region:
    """Cells that were added together.

    cells (tuple[tuple[int, int], ...]): In each dimension from where to where.
    taken (int): How many values they took.
    """

    cells: tuple[tuple[Count, Count], ...]
    taken: Count

    @classmethod
    def whole(cls, shape: Shape, taken: int) -> Region:
        """All cells of a tensor."""
        return cls(tuple((0, size) for size in shape), taken)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """These cells of a tensor. Shares its memory."""
        return tensor[tuple(slice(start, stop) for start, stop in self.cells)]

    def clipped(self, shape: Shape) -> Region:
        """The part of the region that lies in a smaller tensor."""
        return Region(
            tuple((min(start, size), min(stop, size)) for (start, stop), size in zip(self.cells, shape)), self.taken
        )

    @property
    def size(self) -> int:
        return math.prod(stop - start for start, stop in self.cells)


def regions_of_grown(regions: Sequence[Region], old: Shape, new: Shape) -> list[Region]:
    """The regions after a tensor changed its shape. The first is the oldest; new cells have taken no values.

    regions (Sequence[Region]): The regions before. old, new (Shape): Same number of dimensions.
    """
    common = [min(sizes) for sizes in zip(old, new)]
    found = [clipped for region in regions if (clipped := region.clipped(common)).size]
    for i, size in enumerate(new):
        if size > common[i]:
            before, after = ((0, known) for known in common[:i]), ((0, other) for other in new[i + 1 :])
            found.append(Region((*before, (common[i], size), *after), 0))
    return found


def check_regions(name: str, regions: Sequence[Region], shape: Shape, taken: int) -> None:
    """Check that regions from a saved state make up an average.

    name (str): Whose they are. shape (Shape): Of the average. taken (int): How many values the oldest took.
    RAISES (StateError): They don't.
    """
    fit = all(
        len(region.cells) == len(shape)
        and all(start < stop <= size for (start, stop), size in zip(region.cells, shape))
        for region in regions
    )
    overlap = any(_overlap(one, other) for i, one in enumerate(regions) for other in regions[:i])
    if (
        not regions
        or not fit
        or overlap
        or sum(region.size for region in regions) != math.prod(shape)
        or regions[0].taken != taken
    ):
        expected = f"regions that make up its shape {tuple(shape)}, the first with {taken} values"
        refuse("the averages", f"regions/{name}", expected, "others")


def _overlap(one: Region, other: Region) -> bool:
    return all(a < d and c < b for (a, b), (c, d) in zip(one.cells, other.cells))
