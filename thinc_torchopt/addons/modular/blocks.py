"""One step: run regularizers and modules over the gradients, param by param, and update the weights.

If a part needs all gradients first (clipping by one norm over all of them), the outputs of the parts before it are kept
until it has seen them, which needs as much memory as the gradients. Parts come one after another for each param, not
one list op for all of them: so a module is written for one param, and what it makes is small and still in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .module import ModularPart


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


class Block:
    """A param, and its gradient on the way through the modules.

    weights (Tensor): The values before the update. Read-only.
    state (MutableMapping[str, Any]): The current module's state of the param, by name. Tensors are written in place.
    options (Mapping[str, Any]): The current module's options for the param.
    tool (Any): The result of the module's `begin_step`.

    All tensors have the same shape. Half-precision params are computed in float32.
    """

    def __init__(self, weights: Tensor, values: Tensor, factor: float = 1.0):
        wide = opmath(weights.dtype)
        self.weights = weights.to(wide)
        self._values = values.to(wide)
        self._is_own = self._values is not values
        self.state: MutableMapping[str, Any] = {}
        self.options: Mapping[str, Any] = {}
        self.tool: Any = None
        self.scale(factor)

    @property
    def step(self) -> int:
        """Number of steps of the module on the param, this one included."""
        return int(self.state.get("step", 0))

    def read(self) -> Tensor:
        """The input. Read-only: it may be the gradient itself."""
        return self._values

    def own(self) -> Tensor:
        """The input, to be changed in place to the output."""
        if not self._is_own:
            self._values, self._is_own = self._values.clone(), True
        return self._values

    def put(self, values: Tensor) -> None:
        """Set the output. values (Tensor): Perhaps a state tensor: it is not changed."""
        self._values, self._is_own = values, False

    def scale(self, factor: float) -> None:
        """Multiply the input by a number."""
        if factor != 1.0:
            self._values, self._is_own = self._values * factor, True

    def begin(self, work: ActivePart, tool: Any) -> ModularPart:
        """Come to the next part. RETURNS (ModularPart): The part."""
        self.options, self.state, self.tool = work.options, work.kept, tool
        return work.part

    def update(self, rate: float, decay: float) -> None:
        """Update the weights.

        rate (float): Multiplies the output of the last module. decay (float): Part of the weights to subtract.
        """
        if decay:
            self.weights.mul_(1.0 - decay)
        self.weights.add_(self._values, alpha=-rate)


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in."""
    return torch.float32 if dtype.itemsize < 4 else dtype


@dataclass
class ActivePart:
    """A part that works on a param."""

    part: ModularPart
    options: Mapping[str, Any]
    kept: StateView


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
            block.begin(self.work[place], tools[place]).run(block)

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
            block.begin(self.work[places[-1]], tools[places[-1]]).run_last(block, self.rate, self.decay)
        else:
            block.update(self.rate, self.decay)
        late = [place for place, work in self.work.items() if work.part.changes_weights]
        for place in late:
            block.begin(self.work[place], tools[place]).after_update(block)
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
                    block.begin(member.work[place], tools[place]).measure(block)
                inputs[i] = block.read()
            start, factor = place, 1.0
            tools[place] = part.after_measure(tools[place])
    for i, member in enumerate(members):
        block = Block(member.param, inputs[i], factor)
        member.update(block, member.at(start, len(parts)), tools, None if updates is None else updates[i])
    for part, tool in zip(parts, tools):
        part.end_step(tool, shared[part.label])
