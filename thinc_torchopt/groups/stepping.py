"""One step of a torch optimizer, for some of its params.

A step takes only the params that got a gradient. torch would skip a param whose `grad` is None; but gradients live on
between steps, in thinc's buffers and in torch's, so each step shows torch only the params that it is to update.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

from .. import kernels
from ..errors import ConfigError
from ..gradients import scale_grads
from ..learn_rate import LearnRateController
from ..params import Param
from ..schedules import current
from ..types import BatchSize
from .building import Builder
from .direct import DirectStep
from .torch_group import TorchGroup


class Stepper:
    """Lets a torch optimizer step.

    builder (Builder): What it was built by.
    optimizer (torch.optim.Optimizer): With groups as `TorchGroup.entry`.
    controller (LearnRateController): Writes the learning rates.
    """

    def __init__(self, builder: Builder, optimizer: torch.optim.Optimizer, controller: LearnRateController):
        self.optimizer = optimizer
        self.algorithm = builder.algorithm
        self._name = builder.name
        self._ranges = builder.ranges
        self._controller = controller
        self.direct = DirectStep(optimizer)

    def begin_step(
        self, chosen: Sequence[tuple[TorchGroup, Sequence[Param]]], batch_size: BatchSize | None = None
    ) -> None:
        """Write the options that schedules move, and let an algorithm that wants it know the size of the batch, and
        change the gradients before they are measured.

        chosen (Sequence): As for `step`.
        batch_size (BatchSize | None): If it is known.
        RAISES (ScheduleError): The algorithm does not take the value of a schedule.
        """
        for group, _ in chosen:
            for name in group.moving:
                value = current(group.settings.options[name])
                if value != group.entry[name]:
                    self._ranges.check(name, group.settings.options)
                    group.entry[name] = value
        if batch_size is not None and hasattr(self.optimizer, "begin_step"):
            self.optimizer.begin_step(**batch_size._asdict())
        hook = getattr(self.optimizer, "before_clipping", None)
        if hook is not None:
            for group, params in chosen:
                hook(group.entry, [param.tensor for param in params])

    def step(self, chosen: Sequence[tuple[TorchGroup, Sequence[Param]]], grad_factor: float) -> None:
        """Update params by their gradients, at the rates that were written.

        chosen (Sequence): Groups of this algorithm, with the params of each that are to be updated. Each has a
            gradient.
        grad_factor (float): Scales all gradients. Rides along in fused kernels.
        """
        scale = None
        if grad_factor != 1.0:
            device = chosen[0][1][0].device
            # From one device to another torch would copy the factor without waiting for it.
            is_one_device = all(param.device == device for _, params in chosen for param in params)
            if is_one_device and all(group.fuses_factor(params) for group, params in chosen):
                # What torch.amp.GradScaler sets for fused kernels, which divide by it.
                scale = torch.full((), 1.0 / grad_factor, device=device)
            else:
                grads = [param.grad for _, params in chosen for param in params]
                scale_grads(grads, [grad_factor] * len(grads))
        if self.direct.is_possible:
            chosen = [(group, params) for group, params in chosen if not self.direct.make(group.entry, params, scale)]
        if chosen:
            self._step_by_torch(chosen, scale)

    def _step_by_torch(self, chosen: Sequence[tuple[TorchGroup, Sequence[Param]]], scale: torch.Tensor | None) -> None:
        """As `step`, by torch's own. scale (Tensor | None): What fused kernels divide gradients by."""
        optimizer = self.optimizer
        if scale is not None:
            optimizer.grad_scale = scale  # type: ignore[attr-defined]
        all_groups = optimizer.param_groups
        all_params = [(group.entry, group.entry["params"], group.entry.get("fused")) for group, _ in chosen]
        last_word = None
        if optimizer._optimizer_step_pre_hooks or _global_optimizer_pre_hooks:
            # Hooks of others run just before the step, and may write rates.
            last_word = optimizer.register_step_pre_hook(lambda *_: self._controller.check_rates(self._name))
        try:
            for parts in zip_longest(*(self._parts(group, params) for group, params in chosen)):
                optimizer.param_groups = [entry for (entry, *_), part in zip(all_params, parts) if part]
                for (entry, *_), part in zip(all_params, parts):
                    entry["params"] = part
                self._step_once(optimizer)
        finally:
            if last_word is not None:
                last_word.remove()
            optimizer.param_groups = all_groups
            for entry, tensors, fused in all_params:
                entry["params"] = tensors
                if fused:
                    entry["fused"] = fused
            if scale is not None:
                del optimizer.grad_scale  # type: ignore[attr-defined]

    def _step_once(self, optimizer: torch.optim.Optimizer) -> None:
        """Let torch step. RAISES (ConfigError): A learning rate is too high for the type of the params."""
        try:
            optimizer.step()
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            group, rate = max(self._controller.rates.items(), key=lambda item: item[1])
            raise ConfigError(
                f"Can't update params by {self.algorithm.label}: expected learning rates whose steps the type of the "
                f"params can hold, found {rate:g} in '{group}'. torch says: {error}. Lower 'learn_rate' in "
                "[training.optimizer], or that of a param group."
            ) from error

    def _parts(self, group: TorchGroup, params: Sequence[Param]) -> Iterator[Sequence[torch.Tensor]]:
        """The tensors of a group in as few calls of torch's step as can be: one, but for three exceptions."""
        if group.entry.get("fused") and not group.fuses(params):
            yield from self._parts_of_kernel(
                group, [param.tensor for param in params if id(param) not in group.not_fused]
            )
            group.entry["fused"] = None
            yield [param.tensor for param in params if id(param) in group.not_fused]
            return
        tensors = [param.tensor for param in params]
        if self.algorithm.counts_for_group:
            by_step: dict[int, list[torch.Tensor]] = {}
            for param in params:
                by_step.setdefault(param.steps, []).append(param.tensor)
            first = self.optimizer.defaults.get("step")
            for step, part in by_step.items():
                if step == 0 and first is None:
                    group.entry.pop("step", None)  # which is how most of them know that state has to be made
                else:
                    group.entry["step"] = step + (first or 0)
                yield part
        else:
            yield from self._parts_of_kernel(group, tensors)

    def _parts_of_kernel(self, group: TorchGroup, tensors: list[torch.Tensor]) -> Iterator[Sequence[torch.Tensor]]:
        """Those among the tensors of a group that torch's kernel can take together."""
        fresh, seen = [], tensors
        if isinstance(self.optimizer, torch.optim.SGD) and group.entry["fused"]:
            # torch's fused SGD can't take params with and without momentum together.
            state = self.optimizer.state
            fresh = [tensor for tensor in tensors if not state.get(tensor)]
            seen = [tensor for tensor in tensors if state.get(tensor)] if fresh else tensors
        yield from (part for part in (fresh, seen) if part)

    @torch.no_grad()
    def in_eval_form(self, groups: Iterable[TorchGroup]) -> list[tuple[Param, torch.Tensor]]:
        """Params with copies of the values that are to be used, if those are others than the ones that are trained.
        Changes nothing.

        groups (Iterable[TorchGroup]): All of this optimizer.
        """
        optimizer, found = self.optimizer, []
        if not self.algorithm.trial.has_eval_form:
            return []
        all_groups = optimizer.param_groups
        for group in groups:
            by_tensor = {param.tensor: param for param, _ in group.params.values() if param.steps}
            before, tensors = dict(group.entry), group.entry["params"]
            optimizer.param_groups = [group.entry]
            try:
                for part in self._parts(group, list(by_tensor.values())):
                    group.entry["params"] = part
                    trained = [tensor.detach().clone() for tensor in part]
                    optimizer.eval()  # type: ignore[attr-defined]
                    found += [(by_tensor[tensor], tensor.detach().clone()) for tensor in part]
                    optimizer.train()  # type: ignore[attr-defined]
                    # It computes them back, which is not to the last bit.
                    kernels.copy_([tensor.detach() for tensor in part], trained)
            finally:
                optimizer.param_groups = all_groups
                group.entry.update({**before, "params": tensors})
        return found
