"""One average, of a param or a buffer, and the number of values in it.

That number decides how an average begins and warms up. When labels are added, old rows have hundreds of values and new
ones none. So each *region*, cells that were added together, has its own number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Optional

import torch

from ..host import buffers_of
from ..schema import Count, refuse
from ..types import Key

Shape = Sequence[int]


@dataclass
class Region:
    """Cells that were added together.

    cells (tuple[tuple[int, int], ...]): Start and end in each dimension.
    taken (int): The number of values in them.
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
        """The part of the region inside a smaller tensor."""
        return Region(
            tuple((min(start, size), min(stop, size)) for (start, stop), size in zip(self.cells, shape)), self.taken
        )

    @property
    def size(self) -> int:
        return math.prod(stop - start for start, stop in self.cells)


class Average:
    """One average.

    param (Param): Its param. None: a buffer's average.
    tensor (Tensor): The average. Shape: as the param.
    taken (int): The number of values in it.
    regions (list[Region] | None): Regions with different numbers; the first one has the largest.
    """

    __slots__ = ("param", "regions", "taken", "tensor")

    def __init__(self, param: Any, tensor: torch.Tensor):
        self.param = param
        self.tensor = tensor
        self.taken = 0
        self.regions: list[Region] | None = None

    def copy(self) -> Average:
        """An independent copy."""
        made = Average(self.param, self.tensor.clone())
        made.taken, made.regions = self.taken, self.regions and [replace(region) for region in self.regions]
        return made

    @property
    def is_in_use(self) -> bool:
        """Whether it replaces its param: not before its first value, and not if the param was frozen since."""
        return self.taken > 0 and self.param.group is not None


class Slot(NamedTuple):
    """The place of a buffer in a module: its tensor may be replaced.

    path (str): Its name in the state dict, with dots.
    """

    path: str
    owner: torch.nn.Module
    name: str

    @property
    def value(self) -> torch.Tensor | None:
        """The buffer, if it still exists."""
        return buffers_of(self.owner).get(self.name)


class BufferAverages:
    """The averages of a torch module's buffers: of the floats that are saved with it.

    before (BufferAverages): Averages to start with, of an earlier module.
    all_of_them (bool): Copy all of them, or only those of buffers in parts that both modules share.

    Public: `averages` (by the buffer's name in the state dict; None: it can't be averaged), `steps` (the number of the
        module's updates).
    """

    def __init__(self, module: torch.nn.Module, before: Optional[BufferAverages] = None, *, all_of_them: bool = True):
        self.module = module
        named = {
            path: buffer for path, buffer in module.named_buffers(remove_duplicate=False) if buffer.is_floating_point()
        }
        saved = module.state_dict().keys() if named else ()
        parts = {path: path.rpartition(".") for path in named if path in saved}
        self.slots = [Slot(path, module.get_submodule(owner), name) for path, (owner, _, name) in parts.items()]
        self._params: set[Key] = set()
        self.averages: dict[str, Average | None] = {}
        self.steps = 0
        if before is not None:
            owners = {slot.path: slot.owner for slot in before.slots}
            paths = [slot.path for slot in self.slots if all_of_them or slot.owner is owners.get(slot.path)]
            # Copies: the other shim may still exist, around the same module.
            found = {path: before.averages[path] for path in paths if path in before.averages}
            self.averages = {path: None if average is None else average.copy() for path, average in found.items()}
            self.steps = before.steps

    def belong_to_any(self, params: set[Key]) -> bool:
        """Whether any of these params belongs to the module."""
        if self._params.isdisjoint(params):
            self._params = {id(param) for param in self.module.parameters()}
        return not self._params.isdisjoint(params)


# ---------------------------------------------------------------------- regions


def regions_of_grown(regions: Sequence[Region], old: Shape, new: Shape) -> list[Region]:
    """The regions after a tensor changed its shape. The first is the oldest; new cells have no values.

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
    """Check that regions from a saved state fit together.

    name (str): The average's name. shape (Shape): Of the average. taken (int): The number of values in the oldest
        region.
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
