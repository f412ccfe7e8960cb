"""One param group of torch, and what is known of its params."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..params import Param
from ..schedules import is_moving
from .building import wants_kernel
from .settings import ParamSettings

if TYPE_CHECKING:
    from .built_algorithm import BuiltAlgorithm

# Keys of a torch param group that hold no state.
_NO_STATE = ("params", "param_names", "lr", "step")


@dataclass(eq=False)
class TorchGroup:
    """A torch param group.

    id (str): Its id at the controller: the label of its first params.
    entry (dict): torch's own dict.
    owner (BuiltAlgorithm): Whose it is.
    settings (ParamSettings): Those of its params, which differ in nothing but their labels.
    params (dict[int, tuple[Param, ParamSettings]]): Its params with their settings, by `id`, in torch's order.
    not_fused (set[int]): The `id` of those that can't be given to a fused kernel, if `entry` asks for one.
    wide (set[int]): The `id` of those of float64.
    """

    id: str
    entry: dict[str, Any]
    owner: BuiltAlgorithm
    settings: ParamSettings
    params: dict[int, tuple[Param, ParamSettings]] = field(default_factory=dict)
    not_fused: set[int] = field(default_factory=set)
    wide: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.moving = [name for name, value in self.settings.options.items() if is_moving(value)]

    @property
    def labels(self) -> set[str]:
        """What the config calls it; several names if blocks say the same."""
        return {settings.label for _, settings in self.params.values()}

    @property
    def names(self) -> set[str]:
        """By what it can be chosen: its id, its labels, and the blocks of its params."""
        return {self.id}.union(*(settings.names for _, settings in self.params.values()))

    @property
    def updates(self) -> int:
        """How many updates its params had, at most."""
        return max((param.steps for param, _ in self.params.values()), default=0)

    @property
    def state(self) -> dict[str, Any]:
        """What the algorithm itself keeps in the group, beside options: the step size that Prodigy found, for
        example.
        """
        settings = self.settings.options
        return {name: value for name, value in self.entry.items() if name not in _NO_STATE and name not in settings}

    # ------------------------------------------------------------------ params come and go

    def put_in(self, param: Param, settings: ParamSettings) -> None:
        """Put a param in, behind all others. `list_params` comes after it."""
        param.group = self
        self.params[id(param)] = param, settings
        self.note_kernel(param, param.tensor)

    def take_out(self, param: Param) -> None:
        """Take a param out. `list_params` comes after it."""
        param.group = None
        del self.params[id(param)]
        self.not_fused.discard(id(param))
        self.wide.discard(id(param))

    def list_params(self) -> None:
        """Tell torch which params are in the group."""
        self.entry["params"] = [param.tensor for param, _ in self.params.values()]

    # ------------------------------------------------------------------ fused kernels

    def fuses(self, params: Sequence[Param]) -> bool:
        """Whether a fused kernel updates all of these params of the group."""
        return bool(self.entry.get("fused")) and (not self.not_fused or self.not_fused.isdisjoint(map(id, params)))

    def fuses_factor(self, params: Sequence[Param]) -> bool:
        """Whether it also takes a factor for the gradients, of which kernels know 32 bits: too few for wider params."""
        return self.fuses(params) and (not self.wide or self.wide.isdisjoint(map(id, params)))

    def note_kernel(self, param: Param, tensor: torch.Tensor) -> None:
        """Note whether a param can be given to the fused kernel. The group stops using the kernel if there is none for
        a device.

        tensor (Tensor): What the param is, or will be.
        """
        self.not_fused.discard(id(param))
        self.wide.discard(id(param))
        if tensor.dtype is torch.float64:
            self.wide.add(id(param))
        if not self.entry.get("fused"):
            return
        kernel = self.owner.algorithm.kernel
        if self.settings.options["fused"] is None and not wants_kernel(kernel, [tensor], self.settings.options):
            self.entry["fused"] = None
        elif not kernel.takes(tensor):
            self.not_fused.add(id(param))
