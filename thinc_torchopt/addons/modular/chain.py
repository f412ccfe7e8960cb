"""One step: run regularizers and modules over the gradients, param by param, and update the weights.

If a part needs all gradients first (clipping by one norm over all of them), the outputs of the parts before it are kept
until it has seen them, which needs as much memory as the gradients. Parts come one after another for each param, not
one list op for all of them: so a module is written for one param, and what it makes is small and still in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .module import Block, ModularPart, StateView


@dataclass
class ActivePart:
    """A part that works on a param."""

    part: ModularPart
    options: Mapping[str, Any]
    kept: StateView

    def begin(self, block: Block, tool: Any) -> ModularPart:
        """Give the part its options, state and tool for a param."""
        block.options, block.state, block.tool = self.options, self.kept, tool
        return self.part


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

    def run(self, block: Block, places: Sequence[int], tools: Sequence[Any]) -> None:
        """Run the parts at some places."""
        for place in places:
            self.work[place].begin(block, tools[place]).run(block)

    def at(self, start: int, end: int) -> list[int]:
        """The places from `start` to before `end` with parts that change gradients."""
        return [
            place for place in range(start, end) if place in self.work and not self.work[place].part.changes_weights
        ]

    def update(self, block: Block, places: Sequence[int], tools: Sequence[Any], into: Tensor | None) -> None:
        """Run the parts at some places, and update the param. into (Tensor | None): Write the update there instead."""
        before = block.weights
        if into is not None:
            self.run(block, places, tools)
            into.copy_(block.own().mul_(-self.rate).add_(before, alpha=-self.decay))
            block.weights = before + into
        elif places:
            self.run(block, places[:-1], tools)
            self.work[places[-1]].begin(block, tools[places[-1]]).run_last(block, self.rate, self.decay)
        else:
            block.update(self.rate, self.decay)
        late = [place for place, work in self.work.items() if work.part.changes_weights]
        for place in late:
            self.work[place].begin(block, tools[place]).after_update(block)
        if into is None and before is not self.param:
            self.param.copy_(block.weights)
        elif into is not None and late:
            into.copy_(block.weights - before)


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
    tools = [part.begin_step(shared[part.label]) for part in parts]
    inputs = [member.grad for member in members]
    start = 0
    for place, part in enumerate(parts):
        if part.measures and any(place in member.work for member in members):
            for i, member in enumerate(members):
                block = Block(member.param, inputs[i], factor)
                member.run(block, member.at(start, place), tools)
                if place in member.work:
                    member.work[place].begin(block, tools[place]).measure(block)
                inputs[i] = block.read()
            start, factor = place, 1.0
            tools[place] = part.after_measure(tools[place])
    for i, member in enumerate(members):
        block = Block(member.param, inputs[i], factor)
        member.update(block, member.at(start, len(parts)), tools, None if updates is None else updates[i])
    for part, tool in zip(parts, tools):
        part.end_step(tool, shared[part.label])
