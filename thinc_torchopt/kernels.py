"""torch's fused kernels: one pass over the memory of param, gradient and state, and which tensors they may be given.

On a CPU they walk raw memory from the first cell to the last. So they are for tensors that are *dense*: each cell between those is theirs,
and once; and param, gradient and state must lie in memory in the same order. A view into a larger tensor is not dense: a kernel would write
to cells of others. What can't be fused takes torch's plain steps, with the same results up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_ANYWHERE = frozenset({"cpu", "cuda", "mps", "xpu"})


@dataclass(frozen=True)
class FusedKernel:
    """The fused kernel of an algorithm.

    devices (frozenset[str]): Device types for which torch has it.
    half_on_cpu (bool): Whether it is right there for dtypes of less than four bytes.
    """

    devices: frozenset[str] = frozenset()
    half_on_cpu: bool = True

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether the kernel may be given a param. Runs at each step for some algorithms."""
        device = tensor.device.type
        return device in self.devices and is_dense(tensor) and (self.half_on_cpu or device != "cpu" or tensor.dtype.itemsize >= 4)


NO_KERNEL = FusedKernel()
ADAM = FusedKernel(_ANYWHERE)
ADAGRAD = FusedKernel(frozenset({"cpu"}))
# It leaves out whole vectors of half precision: pytorch/pytorch#191763.
SGD = FusedKernel(_ANYWHERE, half_on_cpu=False)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor fills its memory without gaps and overlaps, with its dimensions in any order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in _steps(tensor):
        if stride != expected:
            return False
        expected *= size
    return True


def may_overlap(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory may overlap itself, as after `expand`. Such a tensor can't be updated in place."""
    if tensor.is_contiguous():
        return False
    reach = 0
    for stride, size in _steps(tensor):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _steps(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Stride and size of each dimension with more than one index, the closest cells first."""
    return sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1)
