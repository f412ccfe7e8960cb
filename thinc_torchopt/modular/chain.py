"""One step: run regularizers and modules over the gradients, block by block, and update the weights.

All parts run on a block before the next one, while it is in the cache. If a part needs all gradients first (clipping by
one norm over all of them), the parts before it run twice: once for the norm, once for the update. That needs no memory.
Parts that keep state can't run twice; their output is then stored, which needs as much memory as the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .blocks import Block, Scratch, block_size, opmath, split
from .module import Part


class Kept(MutableMapping[str, Any]):
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
class Work:
    """A part that works on a param. tensors (dict[str, Tensor]): Its state tensors of the param's shape."""

    part: Part
    options: Mapping[str, Any]
    kept: Kept
    tensors: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Member:
    """A param that is updated in this step.

    rate (float): The learning rate. decay (float): The part of the weights to subtract.
    work (dict[int, Work]): The parts that work on it, by their place in the chain.
    """

    param: Tensor
    grad: Tensor
    rate: float
    decay: float
    work: dict[int, Work]

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
    parts: Sequence[Part],
    members: Sequence[Member],
    shared: Mapping[str, MutableMapping[str, Any]],
    *,
    factor: float = 1.0,
    updates: Sequence[Tensor] | None = None,
) -> None:
    """Update params.

    parts (Sequence[Part]): Regularizers, then modules.
    members (Sequence[Member]): The params, prepared.
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

    def __init__(self, parts: Sequence[Part], members: Sequence[Member], tools: list[Any], factor: float):
        self.parts = parts
        self.members = members
        self.tools = tools
        self._scratch = Scratch()
        self._start = 0
        self._inputs = [(member.grad, factor) for member in members]

    def blocks(
        self, i: int, end: int, *others: Tensor, hold: bool = False
    ) -> Iterator[tuple[Block, Sequence[Tensor], Work | None]]:
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
