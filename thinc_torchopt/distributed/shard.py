"""The optimizer's state, split over ranks: each keeps that of some params, updates these, and sends them to the others.

It does what torch's ZeroRedundancyOptimizer does; a test compares the two. That class wants the same params at each
step, in groups that do not change, and builds its optimizer itself. Here a step updates the params that got a gradient,
params are added, grow and thaw, and their state is known by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from ..errors import ConfigError
from ..params import Param
from ..state import in_main_memory
from .group import Group
from .settings import BLOCK

_BY_PARAM = ("torch.optim.", "thinc_torchopt.algorithms.")


def check_can_be_split(optimizers: Collection[torch.optim.Optimizer]) -> None:
    """RAISES (ConfigError): A class may keep state of several params together."""
    for optimizer in optimizers:
        cls = type(optimizer)
        if not cls.__module__.startswith(_BY_PARAM) or isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigError(
                f"Can't set 'shard_state' in {BLOCK}: expected an algorithm of torch's that keeps state of each param "
                f"by itself, found {cls.__name__}. Choose another algorithm, or remove the setting."
            )


class Shards:
    """Which rank updates which param.

    group (Group): The ranks.
    owners (int | None): How many of them update params, from rank 0 on. None: all.
    """

    def __init__(self, group: Group, owners: int | None = None):
        self._group = group
        self._owners: dict[str, int] = {}
        self._sizes = [0] * (group.size if owners is None else owners)

    def owner_of(self, param: Param) -> int:
        """The rank of a param, for good. All ranks meet params in the same order."""
        if param.name not in self._owners:
            rank = min(range(len(self._sizes)), key=lambda rank: (self._sizes[rank], rank))
            self._owners[param.name] = rank
            self._sizes[rank] += param.tensor.numel()
        return self._owners[param.name]

    def own(self, params: Sequence[Param]) -> list[Param]:
        """Those that this rank updates, of all that are updated. The state of others is forgotten."""
        for param in sorted(params, key=lambda param: (-param.tensor.numel(), param.name)):
            self.owner_of(param)
        own = [param for param in params if self._owners[param.name] == self._group.rank]
        for param in params:
            if self._owners[param.name] != self._group.rank and param.group is not None:
                param.group.owner.states.drop(param)
        return own

    @torch.no_grad()
    def exchange(self, params: Sequence[Param]) -> None:
        """Take the new values of params from their ranks. params (Sequence[Param]): All that are updated."""
        parts: dict[tuple[int, torch.dtype, torch.device], list[torch.Tensor]] = {}
        for param in params:
            parts.setdefault((self._owners[param.name], param.dtype, param.device), []).append(param.tensor)
        for (rank, _, _), tensors in sorted(parts.items(), key=lambda part: (part[0][0], str(part[0]))):
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            self._group.broadcast_tensor(flat, rank)
            if rank != self._group.rank:
                for tensor, values in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
                    tensor.copy_(values.view(tensor.shape))

    def gather_state(self, saved: Mapping[str, Any]) -> dict[str, Any] | None:
        """The whole state of an optimizer. All ranks come here. saved (Mapping): Its `state_dict`, of this rank.

        RETURNS (dict | None): On rank 0.
        """
        own = {
            name: found["state"]
            for name, found in saved["params"].items()
            if self._owners.get(name, self._group.rank) == self._group.rank
        }
        states: dict[str, Any] = {}
        for of_rank in self._group.gather_on_0(in_main_memory(own)) or ():
            states |= {name: state for name, state in of_rank.items() if state or name not in states}
        if self._group.rank:
            return None
        params = {name: {**found, "state": states[name]} for name, found in saved["params"].items()}
        return {**saved, "params": params}
