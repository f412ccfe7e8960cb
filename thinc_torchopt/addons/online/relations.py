"""Relations: the parts of a recurrent cell that hold its weights.

*unit*: one of the H numbers of a state; index k. *relation*: y = f(input; weights) with one number per unit, where each
weight belongs to one unit, the last index of its tensor, and affects only y of that unit. *trace*: the past effect of a
weight on the state of its unit, d s[k] / d w[..., k], per sample. With several states per unit (an LSTM has two) there
is a list of traces.

    Dense        y = input @ weight + bias     "Wz.weight" [in, H], and "Wz.bias" [H] if it has one
    Elementwise  y = u * input                 "u" [H]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...core.checks import Section

Weights = Mapping[str, Tensor]
_Value = TypeVar("_Value")
# Up to this many elements of a trace, reading all samples at once is quicker: the result fits the cache.
_SMALL = 262_144


@dataclass(frozen=True)
class Dense:
    """y = input @ weight + bias.

    name (str): Its weights are `<name>.weight`, Shape: (in, H), and `<name>.bias`, Shape: (H,). Unique in a cell.
    inputs (tuple[str, ...]): The parts of its input, in the order of the arguments of a cell's step. "x" is the input
        of the cell, I wide, and comes first. All others are as wide as the state; their names are for people, e.g.
        "r*h".
    has_bias (bool): False: y = input @ weight.
    """

    name: str
    inputs: tuple[str, ...] = ("x", "h")
    has_bias: bool = True

    def __post_init__(self) -> None:
        """RAISES (ConfigError): No inputs, or "x" in another place than the first; has_bias is no bool."""
        where = Section(f"relation '{self.name}'")
        if not self.inputs or "x" in self.inputs[1:]:
            where.refuse("inputs", "at least one part, and 'x' only as the first", self.inputs)
        where.flag("has_bias", self.has_bias)

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (f"{self.name}.weight", f"{self.name}.bias")[: 1 + self.has_bias]

    def shapes(self, width: int, units: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights. width (int): Of the input of the cell. units (int): Of its state."""
        n_in = sum(width if part == "x" else units for part in self.inputs)
        return self._named((n_in, units), (units,))

    def recurrent(self, weights: Weights) -> Tensor:
        """The rows of the weight that read the last H numbers of the input. Shape: (H, H)."""
        weight = weights[f"{self.name}.weight"]
        return weight[-weight.shape[1] :]

    def apply(self, weights: Weights, inputs: Tensor) -> Tensor:
        """inputs (Tensor): Shape: (..., in). RETURNS (Tensor): y. Shape: (..., H)."""
        y = inputs @ weights[f"{self.name}.weight"]
        return y + weights[f"{self.name}.bias"] if self.has_bias else y

    def grads(self, inputs: Tensor, delta: Tensor) -> dict[str, Tensor]:
        """Gradients of sum(delta * y), over all samples and steps. delta (Tensor): Shape: (..., H)."""
        rows = delta.reshape(-1, delta.shape[-1])
        return self._named(inputs.reshape(-1, inputs.shape[-1]).T @ rows, rows.sum(0))

    def instant(self, inputs: Tensor, reach: Tensor) -> dict[str, Tensor]:
        """The effect of the weights on the state at this step: reach * dy/dw. inputs (Tensor): Shape: (B, in). reach
        (Tensor): d s[k] / d y[k]. Shape: (B, H).
        """
        return self._named(inputs[:, :, None] * reach[:, None], reach)

    def add_instant_(self, trace: dict[str, Tensor], inputs: Tensor, reach: Tensor) -> None:
        """trace += instant(inputs, reach), for the first samples."""
        n = len(inputs)
        trace[f"{self.name}.weight"][:n].addcmul_(inputs[:, :, None], reach[:, None])
        if self.has_bias:
            trace[f"{self.name}.bias"][:n].add_(reach)

    def add_block_(self, trace: dict[str, Tensor], inputs: Tensor, reach: Tensor) -> None:
        """The same for several steps at once, summed. Shape of both: (K, B, ...)."""
        n = inputs.shape[1]
        weight = trace[f"{self.name}.weight"]
        weight[:n].baddbmm_(inputs.permute(1, 2, 0).to(weight.dtype), reach.transpose(0, 1).to(weight.dtype))
        if self.has_bias:
            trace[f"{self.name}.bias"][:n].add_(reach.sum(0))

    def _named(self, *values: _Value) -> dict[str, _Value]:
        """Values for the weight and the bias, by their names. Without a bias, only the first one."""
        return dict(zip(self.weight_names, values))


@dataclass(frozen=True)
class Elementwise:
    """y = u * input: each unit reads itself alone. name (str): Of its one weight, Shape: (H,). Unique in a cell."""

    name: str
    inputs: tuple[str, ...] = ("h",)

    @property
    def weight_names(self) -> tuple[str, ...]:
        return (self.name,)

    def shapes(self, width: int, units: int) -> dict[str, tuple[int, ...]]:
        return {self.name: (units,)}

    def apply(self, weights: Weights, inputs: Tensor) -> Tensor:
        return inputs * weights[self.name]

    def grads(self, inputs: Tensor, delta: Tensor) -> dict[str, Tensor]:
        return {self.name: (inputs * delta).reshape(-1, delta.shape[-1]).sum(0)}

    def instant(self, inputs: Tensor, reach: Tensor) -> dict[str, Tensor]:
        return {self.name: inputs * reach}

    def add_instant_(self, trace: dict[str, Tensor], inputs: Tensor, reach: Tensor) -> None:
        trace[self.name][: len(inputs)].addcmul_(inputs, reach)

    def add_block_(self, trace: dict[str, Tensor], inputs: Tensor, reach: Tensor) -> None:
        trace[self.name][: inputs.shape[1]].add_((inputs * reach).sum(0))


Relation = Dense | Elementwise


def check_names(relations: Sequence[Relation], where: Section) -> None:
    """RAISES (ConfigError): Two relations share a name, or the name of a weight: their gradients would add up."""
    found: set[str] = set()
    for relation in relations:
        names = {relation.name, *relation.weight_names}
        if twice := sorted(found & names):
            where.refuse("cell", "relations with different names", twice[0], "Rename one of the two.")
        found |= names


def per_unit(values: Tensor, like: Tensor) -> Tensor:
    """One number per sample and unit, in a form that multiplies a trace. values (Tensor): Shape: (B, H)."""
    return values if like.ndim == 2 else values[:, None]


def read_trace_(grad: Tensor, trace: Tensor, signal: Tensor) -> None:
    """grad += sum over samples of signal * trace, without allocating memory of the size of a large trace.

    grad (Tensor): Shape: (in, H) or (H,). trace (Tensor): Shape: (B, in, H) or (B, H). signal (Tensor): Shape: (B, H).
    """
    if len(trace) > 1 and trace.numel() <= _SMALL:
        grad.add_((per_unit(signal, trace) * trace).sum(0))
        return
    for of_sample, weight in zip(trace, signal):
        grad.addcmul_(of_sample, weight)


class Held(dict[str, Tensor]):
    """Weights that do not change while they are held. What is derived from them is computed once."""

    def __init__(self, weights: Weights):
        super().__init__(weights)
        self._derived: dict[tuple[Any, ...], Tensor] = {}

    def joined(self, names: tuple[str, ...], rows: int | None = None) -> Tensor:
        """Weights side by side. rows (int): Only the first ones. Shape: (rows, units of all)."""
        if (key := (rows, *names)) not in self._derived:
            self._derived[key] = torch.cat([self[name][:rows] for name in names], -1)
        return self._derived[key]

    def diagonal(self, relation: Dense) -> Tensor:
        """Of its recurrent weight: what a unit reads of itself. Shape: (H,)."""
        key = ("diagonal", relation.name)
        if key not in self._derived:
            self._derived[key] = relation.recurrent(self).diagonal().clone()
        return self._derived[key]


def apply_all(relations: Sequence[Dense], weights: Weights, inputs: Tensor) -> Sequence[Tensor]:
    """y of relations with the same input: by one matmul, if the weights are held. inputs (Tensor): Shape: (..., in)."""
    if not (isinstance(weights, Held) and all(relation.has_bias for relation in relations)):
        return [relation.apply(weights, inputs) for relation in relations]
    weight, bias = (weights.joined(names) for names in zip(*(relation.weight_names for relation in relations)))
    return torch.nn.functional.linear(inputs, weight.T, bias).chunk(len(relations), -1)


def own_weight(relation: Dense, weights: Weights) -> Tensor:
    """The diagonal of its recurrent weight. Shape: (H,)."""
    return weights.diagonal(relation) if isinstance(weights, Held) else relation.recurrent(weights).diagonal()


def concatenated(parts: tuple[Tensor, ...]) -> Tensor:
    """The input of a relation, from its parts."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
