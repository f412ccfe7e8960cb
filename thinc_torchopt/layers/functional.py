"""The derivatives of a cell without a closed form, by torch.func, one sample at a time under vmap; and checks of a
cell.

These are the definitions; the closed forms in cells.py are tested against them.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import jacrev, vjp, vmap

from ..checks import Section
from ..errors import ConfigWarning, ShapeError
from .cells import Cell, Linearized, State
from .relations import Relation, Weights, concatenated


class Recorded:
    """A `relate` that records the input of each relation.

    offsets (dict[str, Tensor]): Added to y of each relation, to differentiate with respect to it.
    """

    def __init__(self, cell: Cell, weights: Weights, offsets: dict[str, Tensor] | None = None):
        self._relations = {relation.name: relation for relation in cell.relations}
        self._weights = weights
        self._offsets = offsets or {}
        self.inputs: dict[str, Tensor] = {}
        self.used: list[str] = []

    def __call__(self, name: str, *parts: Tensor) -> Tensor:
        self.used.append(name)
        self.inputs[name] = concatenated(parts)
        y = self._relations[name].apply(self._weights, self.inputs[name])
        return y + self._offsets[name] if name in self._offsets else y


def linearize_by_func(cell: Cell, x: Tensor, state: State, weights: Weights) -> Linearized:
    """A step and its derivatives: the diagonals of each sample's Jacobians.

    x (Tensor): Shape: (..., I). state (tuple[Tensor, ...]): Shape of each: (..., H).
    """
    leading, units, n = x.shape[:-1], state[0].shape[-1], len(cell.states)
    relate = Recorded(cell, weights)
    new_state = cell.step(x, state, relate)
    by_state, by_y = _jacobians(cell, weights, x.reshape(-1, x.shape[-1]), [s.reshape(-1, units) for s in state])

    def own(jacobian: Tensor) -> Tensor:
        return jacobian.diagonal(dim1=-2, dim2=-1).reshape(*leading, units)

    return Linearized(
        tuple(new_state),
        [[own(by_state[a][c]) for c in range(n)] for a in range(n)],
        {name: [own(by_y[a][name]) for a in range(n)] for name in relate.inputs},
        {name: inputs.expand(*leading, -1) for name, inputs in relate.inputs.items()},
    )


def _jacobians(cell: Cell, weights: Weights, x: Tensor, state: list[Tensor]) -> tuple[Any, Any]:
    """d s_a / d s_c and d s_a / d y of each relation, all units by all units. Shape of each: (B, H, H)."""

    def step(state: State, offsets: dict[str, Tensor], x: Tensor) -> State:
        return tuple(cell.step(x, state, Recorded(cell, weights, offsets)))

    zero = {relation.name: torch.zeros_like(state[0]) for relation in cell.relations}
    found = vmap(jacrev(step, argnums=(0, 1)))(tuple(state), zero, x)
    return [by_state for by_state, _ in found], [by_y for _, by_y in found]


def instant_by_func(relation: Relation, weights: Weights, inputs: Tensor, reach: Tensor) -> dict[str, Tensor]:
    """The effect of a relation's weights on the state at this step, as `Relation.instant`: a vjp for each sample."""
    own = {name: weights[name] for name in relation.weight_names}

    def of_sample(inputs: Tensor, reach: Tensor) -> Any:
        return vjp(partial(_apply, relation, inputs), own)[1](reach)[0]

    return vmap(of_sample)(inputs, reach)


def _apply(relation: Relation, inputs: Tensor, own: Weights) -> Tensor:
    return relation.apply(own, inputs)


def decay_by_func(decay: list[list[Tensor]], traces: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """D times the traces of a relation: vmap over samples, then over units."""

    def of_unit(decay: Tensor, trace: Tensor) -> Tensor:  # (a, c), (..., c)
        return trace @ decay.T

    of_sample = vmap(of_unit, in_dims=(0, -2), out_dims=-2)
    matrix = torch.stack([torch.stack(row, -1) for row in decay], -2)  # (B, H, a, c)
    found = {}
    for name in traces[0]:
        found[name] = vmap(of_sample)(matrix, torch.stack([trace[name] for trace in traces], -1))
    return [{name: values[..., a] for name, values in found.items()} for a in range(len(traces))]


# ---------------------------------------------------------------------- checks


def check_weights(cell: Cell, weights: Weights, width: int, units: int, where: Section) -> None:
    """RAISES (ShapeError): A weight is missing, unexpected, or of another shape. (ConfigError): They are not floats of
    one dtype.
    """
    expected: dict[str, tuple[int, ...]] = {}
    for relation in cell.relations:
        expected |= relation.shapes(width, units)
    for name in sorted(expected.keys() | weights.keys()):
        shape = tuple(weights[name].shape) if name in weights else None
        if shape != expected.get(name):
            raise ShapeError(
                f"Can't use weight '{name}' in {where.path}: expected {_shape(expected.get(name))}, found "
                f"{_shape(shape)}. The input is {width} wide, the state {units}. This cell has {sorted(expected)}."
            )
    dtypes = sorted({str(weight.dtype) for weight in weights.values()})
    if len(dtypes) > 1 or not all(weight.is_floating_point() for weight in weights.values()):
        where.refuse("weights", "floats of one dtype, e.g. float32", ", ".join(dtypes))


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else f"shape {shape}"


def input_width(cell: Cell, weights: Weights) -> int:
    """The width of a cell's input, from its weights. 0: no relation reads it."""
    for relation in cell.relations:
        weight = weights.get(relation.weight_names[0])
        if weight is not None and weight.ndim == 2 and relation.inputs.count("x") == 1:
            return weight.shape[0] - weight.shape[1] * (len(relation.inputs) - 1)
    return 0


def check_cell(cell: Cell, weights: Weights, where: Section) -> tuple[str, ...]:
    """Check that traces can follow a cell, and find the relations that they follow only in part.

    RETURNS (tuple[str, ...]): Relations that reach other units in the same step: that part is left out. Empty for most
        cells.
    RAISES (ConfigError): D or Df is undefined: a relation is used twice, or not at all; the state has other shapes
        after a step; or torch.func can't differentiate the step. (ShapeError): Weights with wrong names or shapes.
    """
    like = next(iter(weights.values()))
    width, units = input_width(cell, weights), like.shape[-1]
    check_weights(cell, weights, width, units, where)
    if cell.truncated is not None:
        return cell.truncated
    rng = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).to(like)

    x, state = some(2, width), [some(2, units) for _ in cell.states]
    relate = Recorded(cell, weights)
    try:
        new = cell.step(x, tuple(state), relate)
    except KeyError as error:
        where.refuse("cell", f"relations of {[relation.name for relation in cell.relations]}", error.args[0])
    except RuntimeError as error:
        where.refuse("cell", "a step with matching shapes", f"{type(error).__name__}: {error}")
    for relation in cell.relations:
        if (times := relate.used.count(relation.name)) != 1:
            where.refuse(
                "cell",
                f"each relation to be used once a step, so that it has one y per unit, for '{relation.name}'",
                f"{times} times",
                "Make a relation of its own for each use.",
            )
    if not isinstance(new, tuple) or [tuple(s.shape) for s in new] != [(2, units)] * len(cell.states):
        shapes = [tuple(s.shape) for s in new] if isinstance(new, tuple) else type(new).__name__
        where.refuse("cell", f"a tuple of {len(cell.states)} states with one number per sample and unit", shapes)
    try:
        some_weights = {name: weight if weight.any() else some(*weight.shape) for name, weight in weights.items()}
        _, by_y = _jacobians(cell, some_weights, x, state)
    except (RuntimeError, TypeError, ValueError) as error:
        where.refuse(
            "cell",
            f"a step that torch.func can differentiate, for one sample ('{type(cell).__name__}')",
            f"{type(error).__name__}: {error}",
        )
    return tuple(name for name in by_y[0] if any((by[name] - _diagonal(by[name])).abs().max() > 1e-6 for by in by_y))


def _diagonal(matrices: Tensor) -> Tensor:
    return torch.diag_embed(matrices.diagonal(dim1=-2, dim2=-1))


def warn_of_truncation(truncated: tuple[str, ...], where: Section) -> None:
    """Warn that the gradient of some relations is a small part of the exact one."""
    if truncated:
        warnings.warn(
            ConfigWarning(
                f"Relation {', '.join(map(repr, truncated))} of the cell in {where.path} reaches other units in the "
                'same step. learning = "d-rtrl" does not follow it there: part of its gradient is left out, and nearly '
                'all of that of the reset gate of "gru". Use cell = "torch-gru" or an LSTM, or learning = "bptt".'
            ),
            stacklevel=3,
        )
