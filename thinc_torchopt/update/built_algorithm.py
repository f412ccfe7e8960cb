"""One torch optimizer, with the param groups from plan.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from ..algorithms import StateBeside, collect_beside
from ..learn_rate import OptimizerRecord, RateWriter
from ..params import Param
from .building import Builder
from .group import Group
from .param_states import ParamStates
from .stepping import Stepper


class BuiltAlgorithm:
    """A torch optimizer, its groups, and its registration at the writer of learning rates.

    builder (Builder): Built it.
    optimizer (torch.optim.Optimizer): As built for the first params.
    writer (RateWriter): Writes the learning rates.

    Public: `groups` (in torch's order), `states` (of its params), `stepper` (makes its steps).
    """

    def __init__(self, builder: Builder, optimizer: torch.optim.Optimizer, writer: RateWriter):
        self.name = builder.name
        self.algorithm = builder.algorithm
        self.builder = builder
        self.optimizer = optimizer
        self.groups: list[Group] = []
        self.states = ParamStates(optimizer)
        self.stepper = Stepper(builder, optimizer, writer)
        self._writer = writer
        self._names: dict[torch.Tensor, str] = {}
        self._record = OptimizerRecord(self.name, optimizer, builder.moving, self._names, keep_groups=True)
        self._record.default_rate = builder.rates.default
        # Drop references to the states that are replaced.
        optimizer.register_load_state_dict_pre_hook(lambda *_: self.stepper.direct.forget())
        optimizer.param_groups = []
        if hasattr(optimizer, "tell_names"):
            optimizer.tell_names(self._names)

    def set_groups(self, groups: Mapping[Group, list[Param]]) -> None:
        """Set its groups, beside those that other code added. The states of params in none of them are dropped.

        groups (Mapping[Group, list[Param]]): With their params.
        """
        self._record.restore_dicts()
        own = {id(group.entry) for group in self.groups}
        foreign = [entry for entry in self.optimizer.param_groups if id(entry) not in own]
        self.groups = list(groups)
        for group, params in groups.items():
            group.set_params(params)
        self.optimizer.param_groups = [*(group.entry for group in groups), *foreign]
        self._names.clear()
        self._names.update({param.tensor: param.name for group in groups for param in group.params})
        self.states.keep_only({tensor for entry in self.optimizer.param_groups for tensor in entry["params"]})
        self.stepper.direct.forget()
        self._writer.set_groups(self._record, [(group.record, group.entry) for group in groups])

    def begin_anew(self, param: Param) -> None:
        """Drop the state of a param."""
        self.states.drop(param)
        self.states.add_initial(self.builder.build([param], fused=param.group is not None and param.group.is_fused))
        self.stepper.direct.forget()

    def in_eval_form(self) -> Iterable[tuple[Param, torch.Tensor]]:
        """See `Stepper.in_eval_form`."""
        return self.stepper.in_eval_form(self.groups)

    def state_beside(self) -> StateBeside:
        """The algorithm's state beside params and groups: see algorithms/state_beside.py."""
        return collect_beside(self.optimizer, self.algorithm.options)
