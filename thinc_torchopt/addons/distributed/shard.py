"""Split the optimizer's state over ranks: each keeps the state of some params, updates them, and sends them to the
others.

This is the method of torch's ZeroRedundancyOptimizer; a test compares the two. That class needs the same params at each
step, in constant groups, and builds its optimizer itself. Here a step updates the params with a gradient, params can be
added, grow and be unfrozen, and their state is saved by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from ...core.errors import ConfigError
from ...core.params import Param
from ...core.state import in_main_memory
from .group import RankGroup
from .settings import DISTRIBUTED

_BY_PARAM = ("torch.optim.", "thinc_torchopt.core.algorithms.")


def check_can_be_split(optimizers: Collection[torch.optim.Optimizer]) -> None:
    """RAISES (ConfigError): An algorithm may have state that belongs to several params."""
    for optimizer in optimizers:
        cls = type(optimizer)
        if not cls.__module__.startswith(_BY_PARAM) or isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigError(
                f"Can't set 'shard_state' in {DISTRIBUTED}: expected an algorithm of torch with separate state for "
                f"each param, found {cls.__name__}. Choose another algorithm, or remove the setting."
            )


class Shards:
    """Assigns params to ranks.

    group (RankGroup): The ranks.
    owners (int | None): Number of ranks that update params, from rank 0 on. None: all.

    Public: `have_begun` (whether any param has a rank).
    """

    def __init__(self, group: RankGroup, owners: int | None = None):
        self._group = group
        self._owners: dict[object, int] = {}  # by the param's lineage
        self._sizes = [0] * (group.size if owners is None else owners)

    @property
    def have_begun(self) -> bool:
        return bool(self._owners)

    def owner_of(self, param: Param) -> int:
        """The rank of a param, also when it is renamed or grows. All ranks must ask for params in the same order."""
        if param.lineage not in self._owners:
            rank = min(range(len(self._sizes)), key=lambda rank: (self._sizes[rank], rank))
            self._owners[param.lineage] = rank
            self._sizes[rank] += param.tensor.numel()
        return self._owners[param.lineage]

    def own(self, params: Sequence[Param]) -> list[Param]:
        """The params that this rank updates, of all that are updated. Drops the state of the others."""
        for param in sorted(params, key=lambda param: (-param.tensor.numel(), param.name)):
            self.owner_of(param)
        own = [param for param in params if self.owner_of(param) == self._group.rank]
        for param in params:
            if self.owner_of(param) != self._group.rank and param.group is not None:
                param.group.owner.states.drop(param)
        return own

    @torch.no_grad()
    def exchange(self, params: Sequence[Param]) -> None:
        """Copy the new values of params from their ranks. params (Sequence[Param]): All that are updated."""
        parts: dict[tuple[int, torch.dtype, torch.device], list[torch.Tensor]] = {}
        for param in params:
            parts.setdefault((self.owner_of(param), param.dtype, param.device), []).append(param.tensor)
        for (rank, _, _), tensors in sorted(parts.items(), key=lambda part: (part[0][0], str(part[0]))):
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            self._group.broadcast_tensor(flat, rank)
            if rank != self._group.rank:
                for tensor, values in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
                    tensor.copy_(values.view(tensor.shape))

    def gather_state(self, saved: Mapping[str, Any], params: Iterable[Param]) -> dict[str, Any] | None:
        """The whole state of an optimizer. All ranks must call it.

        saved (Mapping): This rank's `state_dict`. params (Iterable[Param]): The optimizer's.
        RETURNS (dict | None): The state on rank 0. None on other ranks.
        """
        elsewhere = {
            param.name for param in params if self._owners.get(param.lineage, self._group.rank) != self._group.rank
        }
        own = {name: found["state"] for name, found in saved["params"].items() if name not in elsewhere}
        states: dict[str, Any] = {}
        for of_rank in self._group.gather_on_0(in_main_memory(own)) or ():
            states |= {name: state for name, state in of_rank.items() if state or name not in states}
        if self._group.rank:
            return None
        params = {name: {**found, "state": states[name]} for name, found in saved["params"].items()}
        return {**saved, "params": params}
