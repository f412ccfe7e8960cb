"""What is kept of each param and buffer: its average, and how many values that took."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..types import Key
from .regions import Region


class Average:
    """One average.

    param (Param): Whose it is. None: a buffer's.
    tensor (Tensor): The average. Shape: as the param.
    taken (int): How many values it took.
    regions (list[Region] | None): Where not all cells took as many; the first one took the most.
    """

    __slots__ = ("param", "regions", "taken", "tensor")

    def __init__(self, param: Any, tensor: torch.Tensor):
        self.param = param
        self.tensor = tensor
        self.taken = 0
        self.regions: list[Region] | None = None

    @property
    def is_in_use(self) -> bool:
        """Whether it stands for its param: not before it took a value, nor when the param was frozen since."""
        return self.taken > 0 and self.param.group is not None


class Slot(NamedTuple):
    """Where a module holds a buffer: the tensor may be another one each time.

    path (str): Its name in the state dict, with dots.
    """

    path: str
    owner: torch.nn.Module
    name: str

    @property
    def value(self) -> torch.Tensor | None:
        """The buffer, if it is still there."""
        return self.owner._buffers.get(self.name)


class BufferAverages:
    """The averages of a torch module's buffers: of the floats that are saved with it.

    averages (dict): By the buffer's name in the state dict. None: it can't be averaged.
    steps (int): How many updates the module had.
    """

    def __init__(self, module: torch.nn.Module):
        self.module = module
        self.averages: dict[str, Average | None] = {}
        self.steps = 0
        named = {
            path: buffer for path, buffer in module.named_buffers(remove_duplicate=False) if buffer.is_floating_point()
        }
        saved = module.state_dict().keys() if named else ()
        parts = {path: path.rpartition(".") for path in named if path in saved}
        self.slots = [Slot(path, module.get_submodule(owner), name) for path, (owner, _, name) in parts.items()]
        self._params: set[Key] = set()

    def belong_to_any(self, params: set[Key]) -> bool:
        """Whether a param among these is one of the module's."""
        if self._params.isdisjoint(params):
            self._params = {id(param) for param in self.module.parameters()}
        return not self._params.isdisjoint(params)
