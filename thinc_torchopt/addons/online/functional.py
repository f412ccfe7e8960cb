"""The derivatives of a cell by torch.func, one sample at a time under vmap, for cells without a closed form and for
`fast_solve = False`; and checks of a cell.

These are the definitions; the closed forms in cells.py and relations.py are tested against them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import jacrev, vjp, vmap

from ...core.checks import Section
from ...core.errors import ConfigWarning, ShapeError
from .cells import Cell, Linearized, Relate, State
from .relations import Relation, Weights, check_names, concatenated


class Recorded:
    """A `relate` that records the input of each use of a relation. The key of the first use is the relation's name.

    offsets (dict[str, Tensor]): Added to y of each use, to differentiate with respect to it.
    """

    def __init__(self, cell: Cell, weights: Weights, offsets: dict[str, Tensor] | None = None):
        self._relations = {relation.name: relation for relation in cell.relations}
        self._weights = weights
        self._offsets = offsets or {}
        self.inputs: dict[str, Tensor] = {}
        self.uses: dict[str, list[str]] = {name: [] for name in self._relations}

    def __call__(self, name: str, *parts: Tensor) -> Tensor:
        uses = self.uses[name]
        key = f"{name}, use {len(uses) + 1}" if uses else name
        uses.append(key)
        self.inputs[key] = concatenated(parts)
        y = self._relations[name].apply(self._weights, self.inputs[key])
        return y + self._offsets[key] if key in self._offsets else y


def linearize_by_func(cell: Cell, x: Tensor, state: State, weights: Weights) -> Linearized:
    """A step and its derivatives: the diagonals of each sample's Jacobians.

    x (Tensor): Shape: (..., I). state (tuple[Tensor, ...]): Shape of each: (..., H).
    """
    leading, units, n = x.shape[:-1], state[0].shape[-1], len(cell.states)
    relate = Recorded(cell, weights)
    new_state = cell.step(x, state, relate)
    rows = x.reshape(-1, x.shape[-1]), [s.reshape(-1, units) for s in state]
    by_state, by_y = _jacobians(cell, weights, *rows, list(relate.inputs))

    def own(jacobian: Tensor) -> Tensor:
        return jacobian.diagonal(dim1=-2, dim2=-1).reshape(*leading, units)

    return Linearized(
        tuple(new_state),
        [[own(by_state[a][c]) for c in range(n)] for a in range(n)],
        {key: [own(by_y[a][key]) for a in range(n)] for key in relate.inputs},
        {key: inputs.expand(*leading, -1) for key, inputs in relate.inputs.items()},
        {name: uses[1:] for name, uses in relate.uses.items() if len(uses) > 1},
    )


def _jacobians(cell: Cell, weights: Weights, x: Tensor, state: list[Tensor], uses: list[str]) -> tuple[Any, Any]:
    """d s_a / d s_c and d s_a / d y of each use of a relation, all units by all units. Shape of each: (B, H, H)."""

    def step(state: State, offsets: dict[str, Tensor], x: Tensor) -> State:
        return tuple(cell.step(x, state, Recorded(cell, weights, offsets)))

    zero = {key: torch.zeros_like(state[0]) for key in uses}
    found = vmap(jacrev(step, argnums=(0, 1)))(tuple(state), zero, x)
    return [by_state for by_state, _ in found], [by_y for _, by_y in found]


class ByFunc(Cell):
    """A cell without its closed forms. Its step is the same; all derivatives are found by torch.func."""

    def __init__(self, cell: Cell):
        self._cell = cell
        self.states = cell.states
        self.relations = tuple(cast(Relation, RelationByFunc(relation)) for relation in cell.relations)

    def step(self, x: Tensor, state: State, relate: Relate) -> State:
        return self._cell.step(x, state, relate)


class RelationByFunc:
    """A relation without its closed forms: the derivatives of y by its weights are vector-Jacobian products."""

    def __init__(self, relation: Relation):
        self._relation = relation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._relation, name)

    def grads(self, inputs: Tensor, delta: Tensor) -> dict[str, Tensor]:
        # y is linear in the weights, so their values don't matter.
        n_in, units, relation = inputs.shape[-1], delta.shape[-1], self._relation
        width = n_in - units * sum(part != "x" for part in relation.inputs)
        zero = {name: delta.new_zeros(shape) for name, shape in relation.shapes(width, units).items()}
        pull = vjp(lambda weights: relation.apply(weights, inputs), zero)[1]
        found: dict[str, Tensor] = pull(delta)[0]
        return found

    def instant(self, inputs: Tensor, reach: Tensor) -> dict[str, Tensor]:
        return vmap(self.grads)(inputs, reach)

    def add_instant_(self, trace: Mapping[str, Tensor], inputs: Tensor, reach: Tensor) -> None:
        self._add(trace, self.instant(inputs, reach))

    def add_block_(self, trace: Mapping[str, Tensor], inputs: Tensor, reach: Tensor) -> None:
        self._add(trace, vmap(self.grads, in_dims=1)(inputs, reach))

    @staticmethod
    def _add(trace: Mapping[str, Tensor], instant: Mapping[str, Tensor]) -> None:
        for name, values in instant.items():
            trace[name][: len(values)].add_(values)


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


def check_real(name: str, tensor: Tensor, where: Section) -> Tensor:
    """RAISES (ConfigError): Complex numbers: torch would drop their imaginary part."""
    if tensor.is_complex():
        where.refuse(name, "real numbers", str(tensor.dtype))
    return tensor


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
    RAISES (ConfigError): Two relations have the same name; one is not used; the state has other shapes after a step; or
        torch.func can't differentiate the step. (ShapeError): Weights with wrong names or shapes.
    """
    check_names(cell.relations, where)
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
    for name, uses in relate.uses.items():
        if not uses:
            where.refuse("cell", f"each of its relations to be used in a step, for '{name}'", "none")
    if not isinstance(new, tuple) or [tuple(s.shape) for s in new] != [(2, units)] * len(cell.states):
        shapes = [tuple(s.shape) for s in new] if isinstance(new, tuple) else type(new).__name__
        where.refuse("cell", f"a tuple of {len(cell.states)} states with one number per sample and unit", shapes)
    try:
        some_weights = {name: weight if weight.any() else some(*weight.shape) for name, weight in weights.items()}
        _, by_y = _jacobians(cell, some_weights, x, state, list(relate.inputs))
    except (RuntimeError, TypeError, ValueError) as error:
        where.refuse(
            "cell",
            f"a step that torch.func can differentiate, for one sample ('{type(cell).__name__}')",
            f"{type(error).__name__}: {error}",
        )
    others = {key: max(float((by[key] - _diagonal(by[key])).abs().max()) for by in by_y) for key in by_y[0]}
    return tuple(name for name, uses in relate.uses.items() if any(others[key] > 1e-6 for key in uses))


def _diagonal(matrices: Tensor) -> Tensor:
    return torch.diag_embed(matrices.diagonal(dim1=-2, dim2=-1))


def warn_of_truncation(truncated: tuple[str, ...], where: Section) -> None:
    """Warn that the gradient of some relations is a small part of the exact one."""
    if truncated:
        warnings.warn(
            ConfigWarning(
                f"Relation {', '.join(map(repr, truncated))} of the cell in {where.path} reaches other units in the "
                'same step. learning = "d-rtrl" does not follow it there: part of its gradient is left out, and nearly '
                'all of that of the reset gate of "gru". Use cell = "torch-gru", an LSTM, or "mingru", which is exact; '
                'or learning = "bptt".'
            ),
            stacklevel=3,
        )
