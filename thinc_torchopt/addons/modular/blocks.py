"""One step: run regularizers and modules over the gradients, block by block, and update the weights.

A block is the same cells of a param, its gradient and its state, a few at a time.

On a CPU, a step over whole tensors waits for memory most of the time. A block is small enough to stay in the cache
while all modules work on it. Most arithmetic on a gradient is a factor (clipping, bias correction, learning rate) or
ends in a division: a block keeps both beside its values, and applies them once, when the weights are updated.
benchmarks/modular.py measures the gain.

All parts run on a block before the next one, while it is in the cache. If a part needs all gradients first (clipping by
one norm over all of them), the parts before it run twice: once for the norm, once for the update. That needs no memory.
Parts that keep state can't run twice; their output is then stored, which needs as much memory as the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core.kernels import is_dense

if TYPE_CHECKING:
    from .module import ModularPart

# Elements of a block: 1 MB of float32. Small blocks don't help on a GPU.
CPU_BLOCK = 1 << 18
GPU_BLOCK = 1 << 24
# Factors outside this range are applied at once: their square or product may overflow float32.
_FACTORS = (1e-9, 1e9)


class Scratch:
    """Memory for temporary values of a block, reused for each block."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}

    def lend(self, like: Tensor, dtype: torch.dtype, taken: set[int]) -> Tensor:
        """A tensor with undefined values.

        like (Tensor): Has the shape and device.
        taken (set[int]): Numbers of the buffers in use. The new one is added.
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
    """The part of a param that a module works on: some of its cells, or all of them (`Module.scope`).

    weights (Tensor): The values before the update. Read-only.
    state (Mapping[str, Tensor]): The current module's state tensors, by name. Written in place.
    options (Mapping[str, Any]): The current module's options for this param.
    step (int): Number of steps of the module on this param, this one included.
    tool (Any): The result of the module's `begin_step`.
    whole (MutableMapping[str, Any]): The module's whole state of this param, by name.

    All tensors have the same shape. Half-precision params are computed in float32.
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
        self._lent: dict[int, int] = {}  # number of a buffer of `scratch` by its address
        wide = opmath(weights.dtype)
        self.weights = weights if weights.dtype == wide else self._lend(weights, wide).copy_(weights)
        self._kept = set(self._lent.values())  # until the end of the block
        if values.dtype != wide:
            values = self._lend(weights, wide).copy_(values)
        self._values, self._factor, self._is_own = values, factor, values.data_ptr() in self._lent
        self._divisor: Tensor | None = None
        self.state: Mapping[str, Tensor] = {}
        self.options: Mapping[str, Any] = {}
        self.whole: MutableMapping[str, Any] = {}
        self.step = 0
        self.tool: Any = None

    # ------------------------------------------------------------------ input

    def factored(self) -> tuple[Tensor, float]:
        """The input without its factor, and the factor. Read-only: it may be the gradient itself."""
        if self._divisor is not None or not _FACTORS[0] < abs(self._factor) < _FACTORS[1]:
            self.own()
        return self._values, self._factor

    def read(self) -> Tensor:
        """The input. Read-only."""
        return self._values if self._divisor is None and self._factor == 1.0 else self.own()

    def own(self) -> Tensor:
        """The input, to be changed in place to the output."""
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

    # ------------------------------------------------------------------ output

    def spare(self) -> Tensor:
        """A temporary tensor with undefined values."""
        return self._lend(self.weights, self.weights.dtype)

    def put(self, values: Tensor, *, divisor: Tensor | None = None, factor: float = 1.0) -> None:
        """Set the output to `factor * values / divisor`.

        values (Tensor): A spare tensor, or a state tensor that stays unchanged until the block is done.
        divisor (Tensor | None): A spare tensor.
        """
        self._values, self._divisor, self._factor = values, divisor, factor
        self._is_own = divisor is None and values.data_ptr() in self._lent

    def scale(self, factor: float) -> None:
        """Multiply the input by a number."""
        self._factor *= factor

    # ------------------------------------------------------------------ for the optimizer

    def begin(
        self, options: Mapping[str, Any], state: Mapping[str, Tensor], whole: MutableMapping[str, Any], tool: Any
    ) -> None:
        """Start the next module. Spare tensors that are no longer needed can be reused."""
        self.options, self.state, self.whole, self.tool = options, state, whole, tool
        self.step = whole.get("step", 0)
        used = {value.data_ptr() for value in (self._values, self._divisor) if value is not None}
        self._lent = {at: number for at, number in self._lent.items() if at in used or number in self._kept}

    def update(self, rate: float, decay: float) -> None:
        """Update the weights. They change nowhere else.

        rate (float): Multiplies the output of the last module. decay (float): Part of the weights to subtract.
        """
        if decay:
            self.weights.mul_(1.0 - decay)
        if self._divisor is not None:
            self.weights.addcdiv_(self._values, self._divisor, value=-rate * self._factor)
        else:
            self.weights.add_(self._values, alpha=-rate * self._factor)

    def to_update(self, rate: float, decay: float, target: Tensor) -> None:
        """Write the change of the weights to a tensor, without changing them."""
        target.copy_(self.own().mul_(-rate).add_(self.weights, alpha=-decay))

    def work_on_copy(self) -> Tensor:
        """Replace the weights by a copy. RETURNS (Tensor): The original."""
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
    """Views of the same cells of several tensors, a few at a time.

    tensors (Sequence[Tensor]): Of one shape, in any memory order.
    size (int | None): Number of elements of a view, roughly. None: all at once, in their own shape.
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
    """The sum of squares of each block. torch's own norm adds everything in float32, which is off by 0.1% for 20M
    elements.
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


# ---------------------------------------------------------------------- a step


class StateView(MutableMapping[str, Any]):
    """A part's state of a param: a view of the optimizer's state, where keys begin with the part's label."""

    def __init__(self, state: dict[str, Any], label: str):
        self.state, self.prefix = state, f"{label}/"

    def __getitem__(self, key: str) -> Any:
        return self.state[self.prefix + key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.state[self.prefix + key] = value

    def __delitem__(self, key: str) -> None:
        del self.state[self.prefix + key]

    def __iter__(self) -> Iterator[str]:
        n = len(self.prefix)
        return iter([key[n:] for key in self.state if key.startswith(self.prefix)])

    def __len__(self) -> int:
        return sum(key.startswith(self.prefix) for key in self.state)


@dataclass
class ActivePart:
    """A part that works on a param. tensors (dict[str, Tensor]): Its state tensors of the param's shape."""

    part: ModularPart
    options: Mapping[str, Any]
    kept: StateView
    tensors: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class UpdatedParam:
    """A param that is updated in this step.

    rate (float): The learning rate. decay (float): The part of the weights to subtract.
    work (dict[int, ActivePart]): The parts that work on it, by their place in the chain.
    """

    param: Tensor
    grad: Tensor
    rate: float
    decay: float
    work: dict[int, ActivePart]

    def prepare(self) -> None:
        """Create missing state, and count the step."""
        for work in self.work.values():
            if not work.kept:
                work.kept.update(work.part.first_state(self.param))
            work.part.prepare(work.kept, self.param, work.options)
            work.tensors = {
                key: value
                for key, value in work.kept.items()
                if isinstance(value, Tensor) and value.shape == self.param.shape
            }


def run_chain(
    parts: Sequence[ModularPart],
    members: Sequence[UpdatedParam],
    shared: Mapping[str, MutableMapping[str, Any]],
    *,
    factor: float = 1.0,
    updates: Sequence[Tensor] | None = None,
) -> None:
    """Update params.

    parts (Sequence[ModularPart]): Regularizers, then modules.
    members (Sequence[UpdatedParam]): The params, prepared.
    shared (Mapping): State of parts that belongs to no param, by label.
    factor (float): Multiplies all gradients.
    updates (Sequence[Tensor] | None): Tensors for the updates. If given, params are not changed.
    """
    chain = Chain(parts, members, [part.begin_step(shared[part.label]) for part in parts], factor)
    for place, part in enumerate(parts):
        if part.scope == "all" and any(place in member.work for member in members):
            chain.measure(place)
    for i in range(len(members)):
        chain.update(i, None if updates is None else updates[i])
    for part, tool in zip(parts, chain.tools):
        part.end_step(tool, shared[part.label])


class Chain:
    """The parts and params of one step.

    tools (list): What each part needs in this step, from `begin_step` and `after_measure`.

    The outputs of the parts before `start` are kept in `_inputs`, each with a factor: at first the gradients.
    """

    def __init__(self, parts: Sequence[ModularPart], members: Sequence[UpdatedParam], tools: list[Any], factor: float):
        self.parts = parts
        self.members = members
        self.tools = tools
        self._scratch = Scratch()
        self._start = 0
        self._inputs = [(member.grad, factor) for member in members]

    def blocks(
        self, i: int, end: int, *others: Tensor, hold: bool = False
    ) -> Iterator[tuple[Block, Sequence[Tensor], ActivePart | None]]:
        """Blocks of a param after the parts before `end`.

        i (int): The param. others (Tensor): Split the same way. hold (bool): Don't run the last part yet.
        RETURNS (Iterator): The block; its weights and the pieces of `others`; and the last part, if held.
        """
        member, (values, factor) = self.members[i], self._inputs[i]
        work = [
            (place, member.work[place])
            for place in range(self._start, end)
            if place in member.work and not self.parts[place].changes_weights
        ]
        keys = [[*found.tensors] for _, found in work]
        tensors = [member.param, values, *others, *(value for _, found in work for value in found.tensors.values())]
        whole = any(found.part.scope == "tensor" for _, found in work)
        for weights, part_values, *rest in split(tensors, None if whole else block_size(member.param)):
            block, at = Block(weights, part_values, self._scratch, factor), len(others)
            for (place, found), own_keys in zip(work, keys):
                block.begin(found.options, dict(zip(own_keys, rest[at:])), found.kept, self.tools[place])
                at += len(own_keys)
                if not hold or found is not work[-1][1]:
                    found.part.run(block)
            yield block, [weights, *rest], work[-1][1] if hold and work else None

    def measure(self, place: int) -> None:
        """Let a part of the scope "all" look at its input of all params. If the parts before it can't repeat their
        output, the output is kept.
        """
        part, outputs = self.parts[place], []
        may_repeat = all(before.is_pure for before in self.parts[self._start : place])
        for i, member in enumerate(self.members):
            keep = [] if may_repeat else [torch.empty_like(member.param, dtype=opmath(member.param.dtype))]
            outputs += [(kept, 1.0) for kept in keep]
            for block, (_, *rest), _ in self.blocks(i, place, *keep) if keep or place in member.work else ():
                if place in member.work:
                    block.begin(member.work[place].options, {}, member.work[place].kept, self.tools[place])
                    part.measure(block)
                if keep:
                    rest[0].copy_(block.read())
        if not may_repeat:
            self._start, self._inputs = place, outputs
        self.tools[place] = part.after_measure(self.tools[place])

    def update(self, i: int, into: Tensor | None) -> None:
        """Run the other parts for a param, and update it. into (Tensor | None): Write the update there instead."""
        member = self.members[i]
        after = [found for found in member.work.values() if found.part.changes_weights]
        late = [value for found in after for value in found.tensors.values()]
        others = [*late, *([] if into is None else [into])]
        for block, (weights, *rest), last in self.blocks(i, len(self.parts), *others, hold=into is None):
            if into is not None and not after:
                block.to_update(member.rate, member.decay, rest[0])
                continue
            before = None if into is None else block.work_on_copy()
            if last is None or not last.part.run_last(block, member.rate, member.decay):
                if last is not None:
                    last.part.run(block)
                block.update(member.rate, member.decay)
            at = 0
            for found in after:
                block.begin(found.options, dict(zip(found.tensors, rest[at:])), found.kept, None)
                found.part.after_update(block)
                at += len(found.tensors)
            if before is not None:
                rest[at].copy_(block.weights - before)
            elif block.weights is not weights:
                weights.copy_(block.weights)
