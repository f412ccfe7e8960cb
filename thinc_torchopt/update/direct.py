"""torch's fused step, with the lists that its kernel takes kept from one step to the next.

torch's `step` gathers params, gradients and state anew each time, and counts steps with one small tensor for each
param: for small params that takes longer than the kernel. Here the lists are kept, and whatever they were made of is
compared with what is there now, by identity, which takes 0.2 microseconds a param. The counts of all params are views
of one tensor. torch's own step works on such counts too, to the last bit: it makes the first step, and every one for
which this file has no lists.

What is not here: SGD's first step with momentum, params of several devices or dtypes, optimizers with hooks. torch's
`step` makes these.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_, itemgetter
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from .. import kernels
from ..algorithms import ThincAdam, ThincSGD
from ..host import is_hooked_after_step, is_hooked_before_step
from ..params import Param

Entry = dict[str, Any]
Lists = list[list[Tensor]]


class Kernel(Protocol):
    """How an optimizer class calls its fused kernel.

    fused (FusedKernel): Which params it takes.
    counts ("tensors" | "numbers" | None): What its state "step" is.
    """

    fused: kernels.FusedKernel
    counts: str | None

    def is_wanted(self, entry: Entry) -> bool:
        """Whether a param group asks for it."""

    def state_names(self, entry: Entry) -> tuple[str, ...]:
        """The state tensors of a param that it takes, without "step"."""

    def call(
        self, entry: Entry, tensors: list[Tensor], grads: list[Tensor], state: Lists, steps: Any, scale: Tensor | None
    ) -> None:
        """Make one step.

        steps (list[Tensor] | int | None): Which one it is, counted from 1; as in `counts`.
        scale (Tensor | None): What gradients are divided by.
        """


class _OfTorch:
    """torch's own classes."""

    def is_wanted(self, entry: Entry) -> bool:
        is_plain = not (entry.get("foreach") or entry.get("differentiable") or isinstance(entry["lr"], Tensor))
        return is_plain and bool(entry.get("fused"))


class _Adam(_OfTorch):
    fused = kernels.ADAM
    counts: str | None = "tensors"
    is_decoupled = False

    def state_names(self, entry: Entry) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if entry["amsgrad"] else []))

    def call(self, entry: Entry, tensors: Any, grads: Any, state: Lists, steps: Any, scale: Any) -> None:
        kernels.adam_(
            tensors,
            grads,
            state,
            steps,
            decoupled=self.is_decoupled or entry.get("decoupled_weight_decay", False),
            lr=entry["lr"],
            beta1=entry["betas"][0],
            beta2=entry["betas"][1],
            weight_decay=entry["weight_decay"],
            eps=entry["eps"],
            amsgrad=entry["amsgrad"],
            maximize=entry["maximize"],
            grad_scale=scale,
        )


class _AdamW(_Adam):
    is_decoupled = True  # older torch has no "decoupled_weight_decay" in its groups


class _Adagrad(_OfTorch):
    fused = kernels.ADAGRAD
    counts: str | None = "tensors"

    def state_names(self, entry: Entry) -> tuple[str, ...]:
        return ("sum",)

    def call(self, entry: Entry, tensors: Any, grads: Any, state: Lists, steps: Any, scale: Any) -> None:
        options = {name: entry[name] for name in ("lr", "lr_decay", "weight_decay", "eps", "maximize")}
        kernels.adagrad_(tensors, grads, state[0], steps, grad_scale=scale, **options)


class _SGD(_OfTorch):
    fused = kernels.SGD
    counts: str | None = None

    def state_names(self, entry: Entry) -> tuple[str, ...]:
        return ("momentum_buffer",) if entry["momentum"] != 0 else ()

    def call(self, entry: Entry, tensors: Any, grads: Any, state: Lists, steps: Any, scale: Any) -> None:
        names = ("lr", "weight_decay", "momentum", "dampening", "nesterov", "maximize")
        kernels.sgd_(tensors, grads, *state, grad_scale=scale, **{name: entry[name] for name in names})


class _OfThinc:
    """The drop-ins, which are always fused where they can be."""

    def is_wanted(self, entry: Entry) -> bool:
        return True


class _ThincAdam(_OfThinc):
    fused = kernels.ADAM
    counts: str | None = "numbers"

    def state_names(self, entry: Entry) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def call(self, entry: Entry, tensors: Any, grads: Any, state: Lists, steps: Any, scale: Any) -> None:
        ThincAdam.step_alike(entry, tensors, grads, state, steps, fused=True)


class _ThincSGD(_OfThinc):
    fused = kernels.SGD
    counts: str | None = None

    def state_names(self, entry: Entry) -> tuple[str, ...]:
        return ()

    def call(self, entry: Entry, tensors: Any, grads: Any, state: Lists, steps: Any, scale: Any) -> None:
        ThincSGD.step_alike(entry, tensors, grads, fused=True)


_KERNELS: dict[type[torch.optim.Optimizer], Kernel] = {
    torch.optim.Adam: _Adam(),
    torch.optim.AdamW: _AdamW(),
    torch.optim.Adagrad: _Adagrad(),
    torch.optim.SGD: _SGD(),
    ThincAdam: _ThincAdam(),
    ThincSGD: _ThincSGD(),
}


class DirectStep:
    """Makes the steps of a torch optimizer's param groups, where its class has a fused kernel.

    optimizer (torch.optim.Optimizer): Any.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._optimizer = optimizer
        self._kernel = _KERNELS.get(type(optimizer))
        # By the `id` of a group: the params of its last step, and their lists. False: there can't be any.
        self._last: dict[int, tuple[Sequence[Param], _KeptLists | Literal[False] | None]] = {}

    @property
    def is_possible(self) -> bool:
        """Whether nobody wants to know of the optimizer's own steps, or to change them."""
        optimizer = self._optimizer
        return self._kernel is not None and not (
            is_hooked_before_step(optimizer)
            or is_hooked_after_step(optimizer)
            or "step" in vars(optimizer)  # as learning rate schedulers of torch replace it
            or getattr(optimizer, "found_inf", None) is not None
        )

    def make(self, entry: Entry, params: Sequence[Param], scale: Tensor | None = None) -> bool:
        """Make the step of a group. `is_possible` comes before.

        entry (dict): The group.
        params (Sequence[Param]): Those of it that are to be updated, which its kernel takes. Each has a gradient.
        scale (Tensor | None): What gradients are divided by.
        RETURNS (bool): Whether it was made. If not, nothing has changed, and torch's `step` is to make it.
        """
        kernel = self._kernel
        if kernel is None or not kernel.is_wanted(entry):
            return False
        before, lists = self._last.get(id(entry), ((), None))
        if len(before) != len(params) or not all(map(is_, before, params)):
            # Lists are made when the same params come twice in a row.
            self._last[id(entry)] = list(params), None
            return False
        if lists is False:
            return False
        state = self._optimizer.state
        if lists is None or not lists.are_current(state, kernel.state_names(entry)):
            if not _go_together(before, kernel.fused):
                self._last[id(entry)] = before, False
                return False
            lists = _KeptLists.gathered(state, before, kernel.state_names(entry), kernel)
            self._last[id(entry)] = before, lists
            if not lists:
                return False
        grads: Any = [tensor.grad for tensor in lists.tensors]
        with torch.set_grad_enabled(False):  # `torch.no_grad`, in half the time
            kernel.call(entry, lists.tensors, grads, lists.of_state, lists.count(), scale)
        return True

    def forget(self) -> None:
        """Groups have gone or changed."""
        self._last.clear()


class _KeptLists:
    """What a kernel takes of some params, in their order; and what it was gathered from.

    tensors (list[Tensor]): The params. of_state (Lists): Their state tensors, name by name.
    steps (Tensor | int | None): How many steps they had: a count for each, or one for all, or no count.
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
    ) -> _KeptLists | Literal[False] | None:
        """params (Sequence[Param]): They go together.

        RETURNS (_KeptLists | False | None): None: something is missing. False: they had different numbers of steps, and
            will have as long as they come together.
        """
        first, counts = params[0], kernel.counts
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
        """Whether all is as it was gathered: nobody has put another tensor anywhere."""
        by_param = self._by_param
        return (
            state is self._state
            and names == self._names
            and all(map(is_, [param.tensor for param in self._params], self.tensors))
            # Of arrays nobody else has the tensor.
            and all(param.is_on(param.source) for param in self._not_arrays)
            and all(map(is_, map(state.get, self.tensors if by_param else ()), by_param))
            and all(
                all(map(is_, map(itemgetter(name), by_param), tensors)) for name, tensors in zip(names, self.of_state)
            )
            and self._counts_are_current()
        )

    def _counts_are_current(self) -> bool:
        counts = map(itemgetter("step"), self._by_param)
        if self._counts == "tensors":
            return all(map(is_, counts, self._views))
        return self._counts is None or set(counts) == {self.steps}

    def count(self) -> Any:
        """Count a step. RETURNS (list[Tensor] | int | None): As `Kernel.call` takes it."""
        if self._counts == "tensors":
            self.steps.add_(self._one)  # of a number torch would make a tensor each time
            return self._views
        if self._counts == "numbers":
            self.steps += 1
            for found in self._by_param:
                found["step"] = self.steps
        return self.steps


def _go_together(params: Sequence[Param], fused: kernels.FusedKernel) -> bool:
    """Whether a kernel can take params in one call. That stays so until `DirectStep.forget`."""
    first = params[0]
    return all(
        param.device == first.device and param.dtype == first.dtype and fused.accepts(param.tensor) for param in params
    )


def _fits(value: Any, param: Param) -> bool:
    """Whether a state tensor lies in memory as its param does: kernels walk through both from the first cell on."""
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
