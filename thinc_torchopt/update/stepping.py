"""One step of a torch optimizer, for some of its params.

A step updates only the params that have a new gradient. torch skips a param whose `grad` is None; but gradients stay
between steps, in thinc's buffers and in torch's, so those of all other params are put aside while torch steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest

import torch

from .. import kernels
from ..errors import ConfigError
from ..host import is_hooked_before_step
from ..learn_rate import RateWriter
from ..params import Param
from ..schedules import current
from ..types import BatchSize
from .building import Builder
from .clipping import scale_grads
from .direct import DirectStep
from .group import Group

Parts = Sequence[tuple[Group, Sequence[Param]]]


class Stepper:
    """Makes the steps of a torch optimizer.

    builder (Builder): Built it.
    optimizer (torch.optim.Optimizer): As it was built.
    writer (RateWriter): Writes the learning rates.
    """

    def __init__(self, builder: Builder, optimizer: torch.optim.Optimizer, writer: RateWriter):
        self.optimizer = optimizer
        self.algorithm = builder.algorithm
        self._name = builder.name
        self._ranges = builder.ranges
        self._writer = writer
        self.direct = DirectStep(optimizer)

    def begin_step(self, chosen: Parts, batch_size: BatchSize | None = None) -> None:
        """Write the options that schedules move, and let algorithms see the batch size and change gradients before they
        are measured.

        chosen (Parts): As for `step`.
        batch_size (BatchSize | None): If it is known.
        RAISES (ScheduleError): The algorithm does not accept the value of a schedule.
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

    def step(self, chosen: Parts, grad_factor: float) -> None:
        """Update params by their gradients, at the written rates.

        chosen (Parts): Groups of this algorithm, with the params of each to update. Each has a gradient.
        grad_factor (float): Scales all gradients, in fused kernels without another pass.
        """
        scale = None
        if grad_factor != 1.0:
            device = chosen[0][1][0].device
            # torch would copy the factor to other devices without waiting for it.
            is_one_device = all(param.device == device for _, params in chosen for param in params)
            if is_one_device and all(group.accepts_factor for group, _ in chosen):
                # As torch.amp.GradScaler: fused kernels divide by it.
                scale = torch.full((), 1.0 / grad_factor, device=device)
            else:
                grads = [param.grad for _, params in chosen for param in params]
                scale_grads(grads, [grad_factor] * len(grads))
        if self.direct.is_possible:
            chosen = [(group, params) for group, params in chosen if not self.direct.make(group.entry, params, scale)]
        if chosen:
            self._step_by_torch(chosen, scale)

    def _step_by_torch(self, chosen: Parts, scale: torch.Tensor | None) -> None:
        """As `step`, by torch's own step. scale (Tensor | None): Fused kernels divide gradients by it."""
        optimizer = self.optimizer
        last_word = None
        if is_hooked_before_step(optimizer):
            # Hooks of other code run just before the step, and may write rates.
            last_word = optimizer.register_step_pre_hook(lambda *_: self._writer.check_rates(self._name))
        if scale is not None:
            optimizer.grad_scale = scale  # type: ignore[attr-defined]
        try:
            if self.algorithm.counts_for_group:
                for _ in self._groups_by_count(chosen):
                    self._step_once()
                self._part_groups()
            else:
                for tensors in self._parts(chosen):
                    with self._only_grads_of(tensors):
                        self._step_once()
        finally:
            if last_word is not None:
                last_word.remove()
            if scale is not None:
                del optimizer.grad_scale  # type: ignore[attr-defined]

    def _step_once(self) -> None:
        """Let torch step. RAISES (ConfigError): A learning rate is too high for the dtype of the params."""
        optimizer = self.optimizer
        try:
            optimizer.step()
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            group, rate = max(self._writer.learn_rates.items(), key=lambda item: item[1])
            raise ConfigError(
                f"Can't update params by {self.algorithm.label}: expected learning rates whose steps fit the dtype of "
                f"the params, found {rate:g} in '{group}'. torch says: {error}. Lower 'learn_rate' in "
                "[training.optimizer], or that of a param group."
            ) from error

    def _parts(self, chosen: Parts) -> Iterator[list[torch.Tensor]]:
        """The tensors of a step in as few calls as possible: one, except for fused SGD, which can't update params with
        and without momentum together.
        """
        tensors = [param.tensor for _, params in chosen for param in params]
        if isinstance(self.optimizer, torch.optim.SGD) and any(group.is_fused for group, _ in chosen):
            state = self.optimizer.state
            fresh = [tensor for tensor in tensors if not state.get(tensor)]
            if fresh and len(fresh) < len(tensors):
                yield fresh
                is_fresh = set(fresh)
                tensors = [tensor for tensor in tensors if tensor not in is_fresh]
        yield tensors

    @contextmanager
    def _only_grads_of(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Inside, only these tensors of the optimizer have gradients."""
        aside: list[tuple[torch.Tensor, torch.Tensor]] = []
        everything = [tensor for entry in self.optimizer.param_groups for tensor in entry["params"]]
        if len(everything) > len(tensors):
            wanted = set(tensors)
            for tensor in everything:
                if tensor.grad is not None and tensor not in wanted:
                    aside.append((tensor, tensor.grad))
                    tensor.grad = None
        try:
            yield
        finally:
            for tensor, grad in aside:
                tensor.grad = grad

    def _groups_by_count(self, chosen: Parts) -> Iterator[None]:
        """While this iterates, the optimizer has only groups and params to update that had equally many updates: for
        algorithms that count the steps of a group, even of idle ones.
        """
        optimizer = self.optimizer
        all_groups = optimizer.param_groups
        before = [(group.entry, group.entry["params"]) for group, _ in chosen]
        first = optimizer.defaults.get("step")
        by_count: list[list[tuple[int, list[torch.Tensor]]]] = []
        for _, params in chosen:
            found: dict[int, list[torch.Tensor]] = {}
            for param in params:
                found.setdefault(param.steps, []).append(param.tensor)
            by_count.append(list(found.items()))
        try:
            for parts in zip_longest(*by_count):
                optimizer.param_groups = [entry for (entry, _), part in zip(before, parts) if part]
                for entry, part in zip(optimizer.param_groups, filter(None, parts)):
                    count, entry["params"] = part
                    if count == 0 and first is None:
                        entry.pop("step", None)  # most of them create state if it is missing
                    else:
                        entry["step"] = count + (first or 0)
                yield
        finally:
            optimizer.param_groups = all_groups
            for entry, tensors in before:
                entry["params"] = tensors

    def _part_groups(self) -> None:
        """Give each group its own tensors: some algorithms share one between all groups of a step, so it would move
        while its group is idle.
        """
        seen: set[int] = set()
        for entry in self.optimizer.param_groups:
            for name, value in entry.items():
                if isinstance(value, torch.Tensor):
                    if id(value) in seen:
                        entry[name] = value.clone()
                    seen.add(id(value))

    @torch.no_grad()
    def in_eval_form(self, groups: Iterable[Group]) -> list[tuple[Param, torch.Tensor]]:
        """Params with copies of the values to evaluate, if these differ from the trained ones. Changes nothing.

        groups (Iterable[Group]): All groups of this optimizer.
        """
        optimizer, found = self.optimizer, []
        if not self.algorithm.trial.has_eval_form:
            return []
        for group in groups:
            by_tensor = {param.tensor: param for param in group.params if param.steps}
            if not by_tensor:
                continue
            before = dict(group.entry)
            for _ in self._groups_by_count([(group, list(by_tensor.values()))]):
                part = group.entry["params"]
                trained = [tensor.detach().clone() for tensor in part]
                optimizer.eval()  # type: ignore[attr-defined]
                found += [(by_tensor[tensor], tensor.detach().clone()) for tensor in part]
                optimizer.train()  # type: ignore[attr-defined]
                # It computes them back, though not to the last bit.
                kernels.copy_([tensor.detach() for tensor in part], trained)
            group.entry.update(before)
        return found
