"""torch's private ops over lists of tensors, and its fused kernels. Nothing else in the package calls them. Below them:
the number of threads for a step.

*list ops*: a public op for many tensors in one call, in place. Lists may be empty.

*blocks*: where torch has no list op, tensors on a GPU are joined, so that one public op takes all of them.

*fused kernels*: one pass over the memory of param, gradient and state. On a CPU they walk raw memory from the first
cell to the last. So tensors must be *dense*, without gaps and overlaps, and param, gradient and state must have the
same order in memory. A view into a larger tensor is not dense: a kernel would write to cells outside the view. torch's
plain steps update all other params, with the same results up to rounding.

The public form of each op is in its docstring. tests/core/test_kernels.py compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ANYWHERE = frozenset({"cpu", "cuda", "mps", "xpu"})


@dataclass(frozen=True)
class FusedKernel:
    """The fused kernel of an algorithm.

    devices (frozenset[str]): Device types of torch's kernel.
    half_on_cpu (bool): Whether it is correct there for dtypes of less than four bytes.
    """

    devices: frozenset[str] = frozenset()
    half_on_cpu: bool = True

    def accepts(self, tensor: Tensor) -> bool:
        """Whether the kernel can update a param. Runs at each step for some algorithms."""
        device = tensor.device.type
        return (
            device in self.devices
            and is_dense(tensor)
            and (self.half_on_cpu or device != "cpu" or tensor.dtype.itemsize >= 4)
        )


NO_KERNEL = FusedKernel()
ADAM = FusedKernel(_ANYWHERE)
ADAGRAD = FusedKernel(frozenset({"cpu"}))
# It leaves out whole vectors of half precision: pytorch/pytorch#191763.
SGD = FusedKernel(_ANYWHERE, half_on_cpu=False)


# ---------------------------------------------------------------------- list ops


def zero_(tensors: list[Tensor]) -> None:
    """`tensor.zero_()` for each."""
    if tensors:
        torch._foreach_zero_(tensors)


def add_(tensors: list[Tensor], others: list[Tensor], *, alpha: float = 1.0) -> None:
    """`tensor.add_(other, alpha=alpha)` for each pair."""
    if tensors:
        torch._foreach_add_(tensors, others, alpha=alpha)


def mul_(tensors: list[Tensor], factors: list[float]) -> None:
    """`tensor.mul_(factor)` for each pair."""
    if tensors:
        torch._foreach_mul_(tensors, factors)


def clamp_(tensors: list[Tensor], limit: float) -> None:
    """`tensor.clamp_(-limit, limit)` for each."""
    if tensors:
        torch._foreach_clamp_min_(tensors, -limit)
        torch._foreach_clamp_max_(tensors, limit)


def copy_(tensors: list[Tensor], values: list[Tensor]) -> None:
    """`tensor.copy_(value)` for each pair."""
    if tensors:
        torch._foreach_copy_(tensors, values)


def lerp_(tensors: list[Tensor], ends: list[Tensor], weight: float) -> None:
    """`tensor.lerp_(end, weight)` for each pair."""
    if tensors:
        torch._foreach_lerp_(tensors, ends, weight)


def differences(tensors: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    """`tensor - other` for each pair."""
    return list(torch._foreach_sub(tensors, others)) if tensors else []


def norms(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """`torch.linalg.vector_norm(tensor, dtype=dtype)` for each: its 2-norm. dtype (torch.dtype): To compute in."""
    return list(torch._foreach_norm(tensors, 2.0, dtype)) if tensors else []


# ---------------------------------------------------------------------- blocks

# Cells that are joined at most: so many are copied for a while.
BLOCK = 1 << 24


def blocks(*lists: Sequence[Tensor]) -> Iterator[tuple[list[Tensor], ...]]:
    """Rows of lists that public ops can take together, once they are `joined`: those on one GPU, of the same dtypes,
    with `BLOCK` cells at most. Elsewhere each row by itself, as joining takes longer than it saves.

    lists (Sequence[Tensor]): Of the same length. The tensors in a row have as many cells.
    """
    kinds: dict[Any, list[tuple[Tensor, ...]]] = {}
    for row in zip(*lists):
        if all(tensor.is_cuda for tensor in row):
            kinds.setdefault(tuple((one.device, one.dtype) for one in row), []).append(row)
        else:
            yield tuple([one] for one in row)
    for rows in kinds.values():
        block: list[tuple[Tensor, ...]] = []
        size = 0
        for row in rows:
            if block and size + row[0].numel() > BLOCK:
                yield tuple(map(list, zip(*block)))
                block, size = [], 0
            block.append(row)
            size += row[0].numel()
        yield tuple(map(list, zip(*block)))


def joined(tensors: list[Tensor]) -> Tensor:
    """The cells of tensors in a row, in the order of their indices. One tensor is returned as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat([tensor.reshape(-1) for tensor in tensors])


def parted(cells: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Undo `joined`. like (list[Tensor]): Tensors of the same shapes. RETURNS (list[Tensor]): Views."""
    if len(like) == 1:
        return [cells]
    return [part.view(one.shape) for part, one in zip(cells.split([one.numel() for one in like]), like)]


def alike(tensors: list[Tensor], like: list[Tensor]) -> list[Tensor]:
    """`tensor.to(one.device, one.dtype)` for each pair."""
    found = list(tensors)
    kinds: dict[Any, list[int]] = {}
    for i, (tensor, one) in enumerate(zip(tensors, like)):
        if tensor.dtype != one.dtype or tensor.device != one.device:
            kinds.setdefault((tensor.device, one.device, one.dtype), []).append(i)
    for (before, device, dtype), chosen in kinds.items():
        if before.type == "cpu":
            made = [tensors[i].to(device, dtype) for i in chosen]
        elif before == device:
            made = [torch.empty_like(tensors[i], dtype=dtype) for i in chosen]
            copy_(made, [tensors[i] for i in chosen])
        else:  # the host waits for each copy
            made = []
            for (block,) in blocks([tensors[i] for i in chosen]):
                made += parted(joined(block).to(device, dtype), block)
        for i, one in zip(chosen, made):
            found[i] = one
    return found


# ---------------------------------------------------------------------- fused kernels


def adam_(
    params: list[Tensor],
    grads: list[Tensor],
    state: list[list[Tensor]],
    steps: list[Tensor],
    *,
    decoupled: bool,
    **options: Any,
) -> None:
    """`torch.optim.adam.adam(params, ..., foreach=False)`, one step; decoupled (bool): that of AdamW.

    params (list[Tensor]): On one device, of one dtype, and accepted by `ADAM`. Grads and state likewise.
    state (list[list[Tensor]]): `exp_avg` and `exp_avg_sq` of each param; and `max_exp_avg_sq`, if `amsgrad`.
    steps (list[Tensor]): The number of this step for each param, counted from 1. torch's form counts it itself.
    options (Any): All of `lr`, `beta1`, `beta2`, `weight_decay`, `eps`, `amsgrad`, `maximize`; perhaps `grad_scale`,
        which divides gradients.
    """
    if params:
        step: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_
        step(params, grads, *state, *([] if options["amsgrad"] else [[]]), steps, **options)


def adagrad_(
    params: list[Tensor], grads: list[Tensor], sums: list[Tensor], steps: list[Tensor], **options: Any
) -> None:
    """`torch.optim.adagrad.adagrad(params, ..., foreach=False)`, one step.

    params (list[Tensor]): On one device, of one dtype, and accepted by `ADAGRAD`. Grads and state likewise.
    steps (list[Tensor]): As in `adam_`.
    options (Any): All of `lr`, `lr_decay`, `weight_decay`, `eps`, `maximize`; perhaps `grad_scale`.
    """
    if params:
        torch._fused_adagrad_(params, grads, sums, steps, **options)


def sgd_(
    params: list[Tensor],
    grads: list[Tensor],
    momentum_buffers: list[Tensor] | None = None,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    **options: Any,
) -> None:
    """`torch.optim.sgd.sgd(params, grads, momentum_buffers, foreach=False)`, but not the first step with momentum.

    params (list[Tensor]): On one device, of one dtype, and accepted by `SGD`. Gradients likewise.
    momentum_buffers (list[Tensor] | None): None: no momentum.
    options (Any): All of `lr`, `weight_decay`, `maximize`; perhaps `grad_scale`.
    """
    if params:
        of_momentum: dict[str, Any] = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
        torch._fused_sgd_(params, grads, momentum_buffers or [], is_first_step=False, **of_momentum, **options)


# ---------------------------------------------------------------------- memory


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor fills its memory without gaps and overlaps, with its dimensions in any order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in _steps(tensor):
        if stride != expected:
            return False
        expected *= size
    return True


def may_overlap(tensor: Tensor) -> bool:
    """Whether a tensor's memory may overlap itself, as after `expand`. Such a tensor can't be updated in place."""
    if tensor.is_contiguous():
        return False
    reach = 0
    for stride, size in _steps(tensor):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _steps(tensor: Tensor) -> list[tuple[int, int]]:
    """Stride and size of each dimension with more than one index, the closest cells first."""
    return sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1)


# ---------------------------------------------------------------------- threads

# Elements up to which one thread does a step. torch splits each kernel between all threads and waits for the last one:
# for a small model that saves less than a millisecond on an idle machine, and costs tens of them on a busy one
# (benchmarks/README.md).
ONE_THREAD = 4_000_000


@contextmanager
def threads_for(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside, torch works on one thread if the tensors are few and small; otherwise on its usual number.

    tensors (Sequence[Tensor]): The tensors to work on.
    """
    before = torch.get_num_threads()
    if (
        before == 1
        or not any(tensor.is_cpu for tensor in tensors)
        or sum(tensor.numel() for tensor in tensors) > ONE_THREAD
    ):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
