"""One torch optimizer with its params, in one torch param group for each set of settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..algorithms import collect_beside
from ..learn_rate import FromFunction, LearnRateController
from ..params import Param, unique
from .building import Builder
from .param_states import ParamStates
from .rates import GroupRate
from .settings import ParamSettings
from .stepping import Stepper
from .torch_group import TorchGroup


class BuiltAlgorithm:
    """A torch optimizer, its groups, and its place at the controller. `settle` comes after each change of its params.

    builder (Builder): What it was built by.
    optimizer (torch.optim.Optimizer): As built for the first params. Its groups are put in later.
    controller (LearnRateController): Writes the learning rates.

    Public: `groups` (by the key of their settings), `states` (of its params), `stepper` (lets it step).
    """

    def __init__(self, builder: Builder, optimizer: torch.optim.Optimizer, controller: LearnRateController):
        self.name = builder.name
        self.algorithm = builder.algorithm
        self.builder = builder
        self.optimizer = optimizer
        self.groups: dict[tuple[Any, ...], TorchGroup] = {}
        self.states = ParamStates(optimizer)
        self.stepper = Stepper(builder, optimizer, controller)
        self._controller = controller
        self._rates = builder.rates
        self._names: dict[torch.Tensor, str] = {}
        # By key of settings: what adopted rates made of a group that is gone. Its params may come again, larger.
        self._adopted: dict[tuple[Any, ...], tuple[float, float | None]] = {}
        self._changed: dict[TorchGroup, None] = {}
        optimizer.param_groups = []
        if hasattr(optimizer, "tell_names"):
            optimizer.tell_names(self._names)
        controller.register_optimizer(
            self.name,
            optimizer,
            FromFunction(lambda step: self._rates.default()),
            moving=builder.moving,
            param_names=self._names,
            watch_steps=False,
            keep_groups=True,
        )

    # ------------------------------------------------------------------ params come and go

    def add_group(self, settings: ParamSettings, entry: dict[str, Any]) -> None:
        """Make a group for params with these settings, as there is none.

        entry (dict): A group of torch's, as it was built for such params.
        """
        self.optimizer.param_groups.append(entry)
        group = self.groups[settings.key] = TorchGroup(settings.label, entry, self, settings)
        # Params that joined at different times have one label, and groups of their own.
        id, adopted = unique(settings.label, set(self._controller.rates)), self._adopted.pop(settings.key, (1.0, None))
        group.id = self._controller.add_group(
            self.name, entry, GroupRate(settings, self._rates, group), id=id, adopted=adopted
        )

    def put_in(self, params: Sequence[Param], settings: Sequence[ParamSettings]) -> None:
        """Put params into the group of their settings, behind those that are in it; out of the group that they are in.

        settings (Sequence[ParamSettings]): The settings of each.
        """
        for param, own in zip(params, settings):
            if param.group is not None:
                self._take_out(param, param.group)
            group = self.groups[own.key]
            group.put_in(param, own)
            self._names[param.tensor] = param.name
            self._changed[group] = None

    def drop(self, param: Param, group: TorchGroup) -> None:
        """Forget a param of a group, and its state."""
        self._take_out(param, group)
        self._names.pop(param.tensor, None)
        self.states.drop(param)

    def replace(self, param: Param, group: TorchGroup, new: torch.Tensor) -> None:
        """Let another tensor, perhaps on another device or in another memory order, take the place of a param's. The
        state moves along.
        """
        self._names[new] = self._names.pop(param.tensor)
        group.note_kernel(param, new)
        self.states.move(param, new)
        self._changed[group] = None

    def settle(self) -> None:
        """Tell torch and the controller which params there are now. Groups without params go."""
        if not self._changed:
            return
        gone = set()
        for group in self._changed:
            group.list_params()
            if not group.params:
                gone.add(id(group.entry))
                del self.groups[group.settings.key]
                self._adopted[group.settings.key] = self._controller.adopted(group.id)
        if gone:
            self.optimizer.param_groups = [entry for entry in self.optimizer.param_groups if id(entry) not in gone]
        self._changed.clear()
        self.stepper.direct.forget()
        self._controller.refresh(self.name)

    def forget_adopted(self, group: TorchGroup) -> None:
        """If a group is gone: let one like it begin at the rate that the settings say."""
        if not group.params:
            self._adopted.pop(group.settings.key, None)

    def _take_out(self, param: Param, group: TorchGroup) -> None:
        group.take_out(param)
        self._changed[group] = None

    # ------------------------------------------------------------------ values and state

    def in_eval_form(self) -> list[tuple[Param, torch.Tensor]]:
        """See `Stepper.in_eval_form`."""
        return self.stepper.in_eval_form(self.groups.values())

    def state_beside(self) -> dict[str, Any]:
        """What the algorithm keeps beside params and groups: see algorithms/state_beside.py."""
        return collect_beside(self.optimizer, self.algorithm.options)
