"""torch's fused kernels, called without torch's `step`. built_algorithm.py decides when.

torch's `step` collects params, gradients and state again each time, and counts steps with one small tensor per param:
for small params that takes longer than the kernel. Here the lists are kept, and their sources are compared by identity,
which takes 0.2 microseconds a param. The counts of all params are views of one tensor. torch's own step works on such
counts too, to the last bit: it makes the first step, and every step without kept lists.

torch's `step` also makes SGD's first step with momentum, and the steps of params of several devices or dtypes, and of
optimizers with hooks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import is_, itemgetter
from typing import Any, Literal

import torch
from torch import Tensor

from .. import kernels
from ..algorithms import ThincAdam, ThincSGD
from ..params import Param

Entry = dict[str, Any]
Lists = list[list[Tensor]]


class Kernel(ABC):
    """The fused kernel of an optimizer class.

    fused (FusedKernel): Knows which params the kernel accepts.
    counts ("tensors" | "numbers" | None): The type of its state "step".
    state (tuple[str, ...]): The names of its other state tensors.
    """

    fused: kernels.FusedKernel
    counts: str | None = None
    state: tuple[str, ...] = ()

    def is_wanted(self, entry: Entry) -> bool:
        """Whether a param group asks for it. By default as in torch's own classes."""
        is_plain = not (entry.get("foreach") or entry.get("differentiable") or isinstance(entry["lr"], Tensor))
        return is_plain and bool(entry.get("fused"))

    def state_names(self, entry: Entry) -> tuple[str, ...]:
        """As `state`, with the options of a param group."""
        return self.state

    @abstractmethod
    def call(self, entry: Entry, tensors: Any, grads: Any, state: Lists, steps: Any, scale: Any) -> None:
        """Make one step.

        steps (list[Tensor] | int | None): The number of this step, counted from 1; its type is `counts`.
        scale (Tensor | None): Divides gradients.
        """


class _Adam(Kernel):
    fused = kernels.ADAM
    counts = "tensors"
    state = ("exp_avg", "exp_avg_sq")
    is_decoupled = False

    def state_names(self, entry: Entry) -> tuple[str, ...]:
        return (*self.state, *(["max_exp_avg_sq"] if entry["amsgrad"] else []))

    def call(self, entry: Entry, tensors: Any, grads: Any, state: Lists, steps: Any, scale: Any) -> None:
        kernels.adam_(
            tensors,
            grads,
            state,
            steps,
            decoupled=self.is_decoupled or entry.get("decoupled_weight_decay", False),
            beta1=entry["betas"][0],
            beta2=entry["betas"][1],
            grad_scale=scale,
            **{name: entry[name] for name in ("lr", "weight_decay", "eps", "amsgrad", "maximize")},
        )


class _AdamW(_Adam):
    is_decoupled = True  # older torch has no "decoupled_weight_decay" in its groups


class _Adagrad(Kernel):
    fused = kernels.ADAGRAD
    counts = "tensors"
    state = ("sum",)

    def call(self, entry: Entry, tensors: Any, grads: Any, state: Lists, steps: Any, scale: Any) -> None:
        options = {name: entry[name] for name in ("lr", "lr_decay", "weight_decay", "eps", "maximize")}
        kernels.adagrad_(tensors, grads, state[0], steps, grad_scale=scale, **options)


class _SGD(Kernel):
    fused = kernels.SGD

    def state_names(self, entry: Entry) -> tuple[str, ...]:
        return ("momentum_buffer",) if entry["momentum"] != 0 else ()

    def call(self, entry: Entry, tensors: Any, grads: Any, state: Lists, steps: Any, scale: Any) -> None:
        names = ("lr", "weight_decay", "momentum", "dampening", "nesterov", "maximize")
        kernels.sgd_(tensors, grads, *state, grad_scale=scale, **{name: entry[name] for name in names})


class _ThincAdam(Kernel):
    """As the other drop-in, it is always fused if possible."""

    fused = kernels.ADAM
    counts: str | None = "numbers"
    state: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def is_wanted(self, entry: Entry) -> bool:
        return True

    def call(self, entry: Entry, tensors: Any, grads: Any, state: Lists, steps: Any, scale: Any) -> None:
        ThincAdam.step_alike(entry, tensors, grads, state, steps, fused=True)


class _ThincSGD(_ThincAdam):
    fused = kernels.SGD
    counts = None
    state = ()

    def call(self, entry: Entry, tensors: Any, grads: Any, state: Lists, steps: Any, scale: Any) -> None:
        ThincSGD.step_alike(entry, tensors, grads, fused=True)


KERNELS: dict[type[torch.optim.Optimizer], Kernel] = {
    torch.optim.Adam: _Adam(),
    torch.optim.AdamW: _AdamW(),
    torch.optim.Adagrad: _Adagrad(),
    torch.optim.SGD: _SGD(),
    ThincAdam: _ThincAdam(),
    ThincSGD: _ThincSGD(),
}


class KernelLists:
    """The kernel's lists for some params, and the objects that they were made from.

    tensors (list[Tensor]): The params. of_state (Lists): Their state tensors, by name.
    steps (Tensor | int | None): Their numbers of steps: a count for each, one for all, or no count.
    """

    def __init__(self, state: Any, params: Sequence[Param], names: tuple[str, ...], counts: str | None):
        self._params = params
        self._not_arrays = [param for param in params if not param.is_array]
        self._state = state
        self._names = names
        self._counts = counts
        self.tensors = [param.tensor for param in params]
        self._by_param: list[dict[str, Any]] = [state[tensor] for tensor in self.tensors] if names or counts else []
        self.of_state: Lists = [list(map(itemgetter(name), self._by_param)) for name in names]
        self._views: list[Tensor] = []
        self.steps: Any = None
        if counts == "tensors":
            self.steps = torch.stack([found["step"] for found in self._by_param])
            self._views = list(self.steps.unbind(0))
            self._one = torch.ones_like(self._views[0])
            for found, view in zip(self._by_param, self._views):
                found["step"] = view
        elif counts == "numbers":
            self.steps = self._by_param[0]["step"]

    @classmethod
    def gathered(
        cls, state: Any, params: Sequence[Param], names: tuple[str, ...], kernel: Kernel
    ) -> KernelLists | Literal[False] | None:
        """The lists for params that a kernel can update in one call.

        RETURNS (KernelLists | False | None): None: something is missing. False: it can't, which changes only with the
            groups.
        """
        first, counts = params[0], kernel.counts
        for param in params:
            if param.device != first.device or param.dtype != first.dtype or not kernel.fused.accepts(param.tensor):
                return False
        for param in params:
            if not param.is_on(param.source):
                return None
            if not (names or counts):
                continue
            found = state.get(param.tensor)
            if found is None or not all(_fits(found.get(name), param) for name in names):
                return None
            if counts == "tensors" and not _is_count(found.get("step"), first):
                return None
            if counts == "numbers" and found.get("step") != state[first.tensor].get("step"):
                return False
        return cls(state, params, names, counts)

    def are_current(self, state: Any, names: tuple[str, ...]) -> bool:
        """Whether no tensor was replaced since."""
        by_param = self._by_param
        if (
            state is not self._state
            or names != self._names
            or not all(map(is_, [param.tensor for param in self._params], self.tensors))
            # Nobody else has the tensors of arrays.
            or not all(param.is_on(param.source) for param in self._not_arrays)
            or not all(map(is_, map(state.get, self.tensors if by_param else ()), by_param))
        ):
            return False
        for name, tensors in zip(names, self.of_state):
            if not all(map(is_, map(itemgetter(name), by_param), tensors)):
                return False
        counts = map(itemgetter("step"), by_param)
        if self._counts == "tensors":
            return all(map(is_, counts, self._views))
        return self._counts is None or set(counts) == {self.steps}

    def count(self) -> Any:
        """Count a step. RETURNS (list[Tensor] | int | None): As for `Kernel.call`."""
        if self._counts == "tensors":
            self.steps.add_(self._one)  # torch would make a tensor of a number each time
            return self._views
        if self._counts == "numbers":
            self.steps += 1
            for found in self._by_param:
                found["step"] = self.steps
        return self.steps


def _fits(value: Any, param: Param) -> bool:
    """Whether a state tensor has the memory layout of its param: kernels walk through both from the first cell on."""
    return (
        isinstance(value, Tensor)
        and value.shape == param.shape
        and value.stride() == param.strides
        and value.dtype == param.dtype
        and value.device == param.device
    )


def _is_count(value: Any, first: Param) -> bool:
    return (
        isinstance(value, Tensor) and value.dim() == 0 and value.dtype == torch.float32 and value.device == first.device
    )
