"""Blocks: the same cells of a param, its gradient and its state, a few at a time.

On a CPU a step that goes through whole tensors, one formula after the other, waits for memory most of the time. A
block is so small that it stays in the cache while all modules work on it. Most arithmetic on a gradient is a factor
(clipping, bias correction, learning rate) or ends in a division: a block keeps both beside its values, and they are
applied once, where the weights are updated. benchmarks/modular.py measures what that saves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import is_dense

# Elements of a block: 1 MB of float32. A GPU has no use for small ones.
CPU_BLOCK = 1 << 18
GPU_BLOCK = 1 << 24
# Factors beyond these are applied at once: their square, or a product with them, may leave the range of float32.
_FACTORS = (1e-9, 1e9)


class Scratch:
    """Memory for values that last no longer than their block. It is used again for each block."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}

    def lend(self, like: Tensor, dtype: torch.dtype, taken: set[int]) -> Tensor:
        """A tensor of a shape, with any values in it.

        like (Tensor): Whose shape and device it has.
        taken (set[int]): Numbers of the buffers that are in use. That of the new one is added.
        """
        buffers = self._buffers.setdefault((like.device, dtype), [])
        number = next(i for i in range(len(taken) + 1) if i not in taken)
        while len(buffers) <= number:
            buffers.append(torch.empty(0, device=like.device, dtype=dtype))
        if buffers[number].numel() < like.numel():
            buffers[number] = torch.empty(like.numel(), device=like.device, dtype=dtype)
        taken.add(number)
        return buffers[number][: like.numel()].view(like.shape)


class Block:
    """What a module sees of a param: some of its cells, or all of them (`Module.scope`).

    weights (Tensor): The values before the update. Read only.
    state (Mapping[str, Tensor]): The state tensors of the module that is at work, by name. Written in place.
    options (Mapping[str, Any]): That module's options for this param.
    step (int): How many times the module has seen this param, this time included.
    tool (Any): What the module's `begin_step` returned.
    whole (MutableMapping[str, Any]): All that the module keeps of this param, by name.

    Values are computed in float32 if the param is of half precision. Shapes: all alike.
    """

    __slots__ = (
        "_divisor",
        "_factor",
        "_is_own",
        "_kept",
        "_lent",
        "_scratch",
        "_values",
        "options",
        "state",
        "step",
        "tool",
        "weights",
        "whole",
    )

    def __init__(self, weights: Tensor, values: Tensor, scratch: Scratch, factor: float = 1.0):
        self._scratch = scratch
        self._lent: dict[int, int] = {}  # number of a buffer of `scratch` by where it is in memory
        wide = opmath(weights.dtype)
        self.weights = weights if weights.dtype == wide else self._lend(weights, wide).copy_(weights)
        self._kept = set(self._lent.values())  # to the end of the block
        if values.dtype != wide:
            values = self._lend(weights, wide).copy_(values)
        self._values, self._factor, self._is_own = values, factor, values.data_ptr() in self._lent
        self._divisor: Tensor | None = None
        self.state: Mapping[str, Tensor] = {}
        self.options: Mapping[str, Any] = {}
        self.whole: MutableMapping[str, Any] = {}
        self.step = 0
        self.tool: Any = None

    # ------------------------------------------------------------------ what comes in

    def factored(self) -> tuple[Tensor, float]:
        """The values that came in, without a factor, and the factor. Read only: they may be the gradient itself."""
        if self._divisor is not None or not _FACTORS[0] < abs(self._factor) < _FACTORS[1]:
            self.own()
        return self._values, self._factor

    def read(self) -> Tensor:
        """The values that came in. Read only."""
        return self._values if self._divisor is None and self._factor == 1.0 else self.own()

    def own(self) -> Tensor:
        """The values that came in, to be changed in place: what they become is what goes out."""
        if not self._is_own:
            target = self.spare()
            if self._divisor is not None:
                torch.div(self._values, self._divisor, out=target)
                if self._factor != 1.0:
                    target.mul_(self._factor)
            elif self._factor != 1.0:
                torch.mul(self._values, self._factor, out=target)
            else:
                target.copy_(self._values)
            self.put(target)
            self._is_own = True
        elif self._factor != 1.0:
            self._values.mul_(self._factor)
            self._factor = 1.0
        return self._values

    # ------------------------------------------------------------------ what goes out

    def spare(self) -> Tensor:
        """A tensor to compute in, with any values in it."""
        return self._lend(self.weights, self.weights.dtype)

    def put(self, values: Tensor, *, divisor: Tensor | None = None, factor: float = 1.0) -> None:
        """Let `factor * values / divisor` go out.

        values (Tensor): A spare one, or one of the state, which nothing changes until the block is done.
        divisor (Tensor | None): A spare one.
        """
        self._values, self._divisor, self._factor = values, divisor, factor
        self._is_own = divisor is None and values.data_ptr() in self._lent

    def scale(self, factor: float) -> None:
        """Let what came in go out, multiplied by a number."""
        self._factor *= factor

    # ------------------------------------------------------------------ for the optimizer

    def begin(
        self, options: Mapping[str, Any], state: Mapping[str, Tensor], whole: MutableMapping[str, Any], tool: Any
    ) -> None:
        """The next module is at work. Spare tensors that hold nothing that is needed can be lent again."""
        self.options, self.state, self.whole, self.tool = options, state, whole, tool
        self.step = whole.get("step", 0)
        used = {value.data_ptr() for value in (self._values, self._divisor) if value is not None}
        self._lent = {at: number for at, number in self._lent.items() if at in used or number in self._kept}

    def update(self, rate: float, decay: float) -> None:
        """Update the weights: the one place where they change.

        rate (float): Multiplies what came out of the last module. decay (float): Part of the weights that goes.
        """
        if decay:
            self.weights.mul_(1.0 - decay)
        if self._divisor is not None:
            self.weights.addcdiv_(self._values, self._divisor, value=-rate * self._factor)
        else:
            self.weights.add_(self._values, alpha=-rate * self._factor)

    def to_update(self, rate: float, decay: float, target: Tensor) -> None:
        """Write down by how much the weights would change. They stay."""
        target.copy_(self.own().mul_(-rate).add_(self.weights, alpha=-decay))

    def work_on_copy(self) -> Tensor:
        """Let the weights be a copy from now on. RETURNS (Tensor): What they were."""
        before = self.weights
        self.weights = torch.empty_like(before).copy_(before)
        return before

    def _lend(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        taken = set(self._lent.values())
        before = set(taken)
        found = self._scratch.lend(like, dtype, taken)
        [number] = taken - before
        self._lent[found.data_ptr()] = number
        return found


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def split(tensors: Sequence[Tensor], size: int | None) -> Iterator[Sequence[Tensor]]:
    """Views of the same cells of each, a few at a time.

    tensors (Sequence[Tensor]): Of one shape, in any memory order.
    size (int | None): Of how many elements, more or less. None: all at once, in the shape that they have.
    """
    first = tensors[0]
    if size is None:
        yield tensors
    elif all(tensor.stride() == first.stride() for tensor in tensors) and is_dense(first):
        n = first.numel()
        flat = [
            tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((n,), (1,), tensor.storage_offset())
            for tensor in tensors
        ]
        if n <= size:
            yield flat
        else:
            yield from zip(*(tensor.split(size) for tensor in flat))
    elif first.numel() <= size:
        yield tensors
    else:
        dim = max(range(first.ndim), key=first.size)
        rows = max(1, math.ceil(first.size(dim) * size / first.numel()))
        for parts in zip(*(tensor.split(rows, dim) for tensor in tensors)):
            yield parts if parts[0].numel() <= size or rows == 1 else next(split(parts, None))


def block_size(tensor: Tensor) -> int:
    return CPU_BLOCK if tensor.device.type == "cpu" else GPU_BLOCK


def sum_of_squares(tensor: Tensor, size: int = CPU_BLOCK) -> list[Tensor]:
    """The sum of the squares of each block. torch's own norm adds up all in float32, which is off by a thousandth for
    20M elements.
    """
    found = []
    for [part] in split([tensor], size):
        flat = part.reshape(-1).to(opmath(part.dtype))
        found.append(torch.dot(flat, flat))
    return found


def norm_of(tensor: Tensor) -> float:
    """The 2-norm of a tensor."""
    squares = sum_of_squares(tensor)
    return math.sqrt(math.fsum(torch.stack(squares).tolist())) if squares else 0.0
