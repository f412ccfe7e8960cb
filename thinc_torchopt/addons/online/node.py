"""One layer in one direction as a node of thinc: its params, and its forward and backward pass over a padded batch.

A dense relation Wz is `W_z` (nO, nI), `U_z` (nO, nO) and `b_z` (nO,) in thinc: rows are units, as in all of thinc's
layers, and the input and the state have a matrix each, so either may grow. Relations without x have no W, those with
only x have no U. An elementwise relation keeps its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

import numpy
import torch
from thinc.api import Model, torch2xp, uniform_init, xp2torch
from thinc.types import Padded
from torch import Tensor

from ...core.checks import Section
from ...core.errors import ShapeError
from ...core.kernels import threads_for
from .adjoint import adjoint_gradients, states_to_keep
from .cells import CELLS, Cell
from .functional import check_cell, check_real, warn_of_truncation
from .gradients import Method, TracedGradients
from .relations import Elementwise, Held, Relation, Weights
from .scan import scan

SETTINGS = "online_rnn"
_NAMES: dict[type[Cell], str] = {cls: name for name, cls in CELLS.items()}


@dataclass(frozen=True)
class Settings:
    """The settings of one layer in one direction, in its node's attrs."""

    cell: Cell
    learning: str
    method: Method
    is_top: bool
    reverse: bool = False
    chrono: int | None = None

    @property
    def gradient(self) -> str:
        """Whether the gradient of the weights is exact, as that of BPTT; if not, what is left out."""
        if self.learning == "bptt":
            return "exact"
        if self.method.normalize_matrix_spectrum:
            return "approximate: normalize_matrix_spectrum bounds it"
        if not self.is_top:
            return "approximate: below the top layer, which gives it the gradient of the same step alone"
        if self.cell.is_exact:
            return "exact"
        if self.cell.truncated:
            return f"approximate: traces can't follow {', '.join(self.cell.truncated)} within a step"
        return "approximate: traces don't follow the effect of a unit on others"


@dataclass(frozen=True)
class LayerInfo:
    """A recurrent layer in one direction.

    cell (str): Its name. learning (str): "d-rtrl" or "bptt". gradient (str): Of its weights: "exact", as by BPTT, or
    "approximate: " and what is left out. Layers below an exact one that learns by "d-rtrl" still get an approximate
    gradient: that of the same step.
    """

    cell: str
    learning: str
    gradient: str


def describe(model: Model) -> list[LayerInfo]:
    """The recurrent layers of a model, the first one first; of two directions, the forward one first."""
    found = [(node.name, node.attrs[SETTINGS]) for node in recurrent_nodes(model)]
    return [LayerInfo(name, settings.learning, settings.gradient) for name, settings in found]


def one_way(settings: Settings, nO: Optional[int], nI: Optional[int], *, dropout: float) -> Model[Padded, Padded]:
    """The node. Its name is that of its cell."""
    return Model(
        _NAMES.get(type(settings.cell), type(settings.cell).__name__),
        _forward,
        init=_init,
        dims={"nO": nO, "nI": nI},
        params=dict.fromkeys(param_shapes(settings.cell, 1, 1)),
        attrs={SETTINGS: settings, "dropout_rate": dropout},
    )


def _init(model: Model, X: Optional[Padded] = None, Y: Optional[Padded] = None) -> None:
    if X is not None:
        model.set_dim("nI", X.data.shape[2])
    if Y is not None:
        model.set_dim("nO", Y.data.shape[2])
    settings: Settings = model.attrs[SETTINGS]
    init_params(model, settings.cell, settings.chrono)
    if settings.learning == "d-rtrl":
        where = Section(f"layer '{model.name}'")
        truncated = check_cell(settings.cell, weights_of(model, settings.cell), where)
        if settings.cell.truncated is None:
            warn_of_truncation(truncated, where)


def _forward(model: Model[Padded, Padded], Xp: Padded, is_train: bool) -> tuple[Padded, Callable[[Padded], Padded]]:
    weights = weights_of(model, model.attrs[SETTINGS].cell)
    rate = model.attrs["dropout_rate"] if is_train else 0.0
    mask = model.ops.get_dropout_mask(Xp.data.shape, rate) if rate else None
    if mask is not None:
        Xp = Padded(Xp.data * mask, Xp.size_at_t, Xp.lengths, Xp.indices)
    with threads_for(list(weights.values())):
        run = _Run(model, weights, Xp)
        Y = run.forward(is_train)

    def backprop(dYp: Padded) -> Padded:
        with threads_for(list(weights.values())):
            dX = as_array(model, run.backward(run.as_weights(dYp.data, model.get_dim("nO"))))
        if mask is not None:
            dX = dX * mask
        return Padded(dX, Xp.size_at_t, Xp.lengths, Xp.indices)

    return Padded(as_array(model, Y), Xp.size_at_t, Xp.lengths, Xp.indices), backprop


class _Run:
    """One batch through one layer: forward, and backward."""

    def __init__(self, model: Model, weights: Weights, Xp: Padded):
        self.model = model
        settings: Settings = model.attrs[SETTINGS]
        self.cell = settings.cell
        self.settings = settings
        self.weights = weights
        self.active: list[int] = [int(n) for n in Xp.size_at_t]
        x = self.as_weights(Xp.data, model.get_dim("nI"))
        self._turned = _turned_steps(Xp, x.device) if settings.reverse else None
        self.x = self._turn(x)
        self._shape = (*x.shape[:2], model.get_dim("nO"))

    def as_weights(self, steps: Any, width: int) -> Tensor:
        """Convert to the dtype of the weights: other layers may compute in half precision.

        RAISES (ShapeError): Wrong width. (ConfigError): Complex numbers.
        """
        tensor = check_real("input or gradient", as_tensor(steps), Section(f"layer '{self.model.name}'", verb="use"))
        if len(tensor) and tensor.shape[2] != width:
            raise ShapeError(
                f"Can't use input or gradient of layer '{self.model.name}': expected {width} numbers for each token, "
                f"found {tensor.shape[2]}. Set nI and nO to the widths of the layers around it."
            )
        return tensor.to(next(iter(self.weights.values())).dtype)

    def _turn(self, steps: Tensor) -> Tensor:
        """Reverse the steps of each sequence, if this layer reads backwards; the same call undoes it."""
        if self._turned is None:
            return steps
        return steps.flatten(0, 1).index_select(0, self._turned).reshape(steps.shape)

    def forward(self, is_train: bool) -> Tensor:
        self._begin = tuple(self.x.new_zeros(self._shape[1], self._shape[2]) for _ in self.cell.states)
        if len(self.x) == 0:
            return self.x.new_zeros(self._shape)
        by_bptt = is_train and self.settings.learning == "bptt"
        self._later = by_bptt and self.cell.is_exact
        self._exact = by_bptt and not self._later
        self._traced = not self._later and self.settings.method.uses_traces(self.cell, self.weights, len(self.x))
        if self._exact:
            outputs = self._forward_exact()
        else:
            with torch.no_grad():
                keep = states_to_keep(*self._shape[:2]) if is_train and not self._traced else 0
                outputs, _, self._states = scan(self.cell, self.weights, self.x, self._begin, self.active, keep=keep)
        return self._turn(outputs.detach())

    def _forward_exact(self) -> Tensor:
        self._leaves = {name: weight.detach().requires_grad_() for name, weight in self.weights.items()}
        self._leaf = self.x.detach().requires_grad_()
        with torch.enable_grad():
            self._outputs, _, _ = scan(self.cell, self._leaves, self._leaf, self._begin, self.active)
        return self._outputs

    def backward(self, dh: Tensor) -> Tensor:
        """Add the gradients of the params. RETURNS (Tensor): dL/dx."""
        if len(self.x) == 0:
            return torch.zeros_like(self.x)
        if self.active[-1] < self._shape[1]:
            ends = torch.tensor(self.active, device=dh.device)[:, None, None]
            dh = torch.where(torch.arange(self._shape[1], device=dh.device)[:, None] < ends, dh, 0.0)
        dh = self._turn(dh)
        if self._exact:
            *found, dx = torch.autograd.grad(
                self._outputs, [*self._leaves.values(), self._leaf], dh, allow_unused=True, materialize_grads=True
            )
            grads: Weights = dict(zip(self._leaves, found))
        else:
            with torch.no_grad():
                grads, dx = self._traces(dh) if self._traced else self._adjoint(dh)
        add_grads(self.model, self.cell, grads)
        return self._turn(dx)

    def _traces(self, dh: Tensor) -> tuple[Weights, Tensor]:
        """A second forward pass, with traces: nothing that grows with the sequence was kept from the first."""
        found = TracedGradients(self.cell, self.weights, self._shape[1], self.settings.method)
        dx = found.read(self.x, self._begin, dh, self.active, inputs=True)
        return found.traces.grads, dx

    def _adjoint(self, dh: Tensor) -> tuple[Weights, Tensor]:
        inputs: Any = "all" if self._later else "step"
        return adjoint_gradients(self.cell, self.weights, self.x, self._states, dh, self.active, inputs=inputs)


def _turned_steps(Xp: Padded, device: torch.device) -> Tensor:
    """For each step and sequence, the row of its step backwards; steps after the end stay. Shape: (T * B,)."""
    n_steps, n_batch = Xp.data.shape[:2]
    steps = torch.arange(n_steps, device=device)[:, None]
    lengths = torch.tensor([int(n) for n in Xp.lengths], dtype=torch.long, device=device)
    turned = torch.where(steps < lengths, lengths - 1 - steps, steps)
    return (turned * n_batch + torch.arange(n_batch, device=device)).flatten()


def recurrent_nodes(model: Model) -> list[Model]:
    """The nodes below a model that have a cell, the first layer first; of two directions, the forward one first."""
    return [node for node in model.walk(order="dfs_pre") if SETTINGS in node.attrs]


# ---------------------------------------------------------------------- two directions


def both_ways(one: Model[Padded, Padded], other: Model[Padded, Padded]) -> Model[Padded, Padded]:
    """Two layers side by side. The second one reads backwards."""
    half = one.maybe_get_dim("nO")
    dims = {"nO": None if half is None else 2 * half, "nI": one.maybe_get_dim("nI")}
    return Model("both_ways", _both_forward, init=_both_init, layers=[one, other], dims=dims)


def _both_init(model: Model, X: Optional[Padded] = None, Y: Optional[Padded] = None) -> None:
    if Y is not None:
        model.set_dim("nO", Y.data.shape[2])
        Y = Padded(Y.data[:, :, : Y.data.shape[2] // 2], Y.size_at_t, Y.lengths, Y.indices)
    for layer in model.layers:
        layer.initialize(X, Y)
    model.set_dim("nI", model.layers[0].get_dim("nI"))
    model.set_dim("nO", 2 * model.layers[0].get_dim("nO"))


def _both_forward(
    model: Model[Padded, Padded], Xp: Padded, is_train: bool
) -> tuple[Padded, Callable[[Padded], Padded]]:
    (one, back_one), (other, back_other) = (layer(Xp, is_train) for layer in model.layers)
    half = one.data.shape[2]

    def with_data(data: Any) -> Padded:
        return Padded(data, Xp.size_at_t, Xp.lengths, Xp.indices)

    def backprop(dYp: Padded) -> Padded:
        parts = dYp.data[:, :, :half], dYp.data[:, :, half:]
        return with_data(sum(back(with_data(part)).data for back, part in zip((back_one, back_other), parts)))

    return with_data(model.ops.xp.concatenate((one.data, other.data), axis=2)), backprop


# ---------------------------------------------------------------------- params

_Parts = list[tuple[str, tuple[int, ...]]]


def param_shapes(cell: Cell, width: int, units: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all params of a layer. RAISES (ConfigError): Two relations have the same name."""
    found: dict[str, tuple[int, ...]] = {}
    for relation in cell.relations:
        for parts in _parts(relation, width, units).values():
            for name, shape in parts:
                if name in found:
                    Section("the block of OnlineRNN").refuse("cell", "relations with different names", name)
                found[name] = shape
    return found


def _parts(relation: Relation, width: int, units: int) -> dict[str, _Parts]:
    """The params that make up each weight of a relation, from the first row to the last."""
    weight, *bias = relation.weight_names
    if isinstance(relation, Elementwise):
        return {weight: [(weight, (units,))]}
    rest = relation.name.removeprefix("W")
    suffix = f"_{rest}" if rest else ""
    others = len(relation.inputs) - relation.inputs.count("x")
    matrices: _Parts = [(f"W{suffix}", (units, width))] if "x" in relation.inputs else []
    if others:
        matrices.append((f"U{suffix}", (units, units * others)))
    return {weight: matrices, **{name: [(f"b{suffix}", (units,))] for name in bias}}


def init_params(model: Model, cell: Cell, chrono: int | None = None) -> None:
    """As torch does: uniform in +-1/sqrt(nO). The recurrent weights of an IndRNN: between 0 and 1.

    chrono (int | None): The biases of memory gates are +-log(uniform(1, chrono - 1)), so that units remember up to so
        many steps: Tallec and Ollivier 2018, https://arxiv.org/abs/1804.11188.
    """
    units = model.get_dim("nO")
    bound = 1 / math.sqrt(units)
    dense = partial(uniform_init, lo=-bound, hi=bound)
    elementwise = partial(uniform_init, lo=0.0, hi=1.0)
    memory: Any = None
    if chrono is not None:
        memory = model.ops.xp.log(uniform_init(model.ops, (units,), lo=1.0, hi=chrono - 1.0))
    for relation in cell.relations:
        init = elementwise if isinstance(relation, Elementwise) else dense
        for parts in _parts(relation, model.get_dim("nI"), units).values():
            for name, shape in parts:
                if not model.has_param(name):
                    model.set_param(name, init(model.ops, shape))
                    if memory is not None and relation.name in cell.memory_gates and len(shape) == 1:
                        sign, added = cell.memory_gates[relation.name]
                        model.set_param(name, sign * memory - added)


def weights_of(model: Model, cell: Cell) -> Held:
    """The weights of a cell, by their names in its relations. Of matrices, copies."""
    found = {}
    for relation in cell.relations:
        for weight, parts in _parts(relation, model.get_dim("nI"), model.get_dim("nO")).items():
            tensors = [as_tensor(model.get_param(name)) for name, _ in parts]
            found[weight] = tensors[0] if tensors[0].ndim == 1 else torch.cat([t.T for t in tensors])
    return Held(found)


def add_grads(model: Model, cell: Cell, grads: Weights) -> None:
    """Add gradients of the weights to those of the params."""
    for relation in cell.relations:
        for weight, parts in _parts(relation, model.get_dim("nI"), model.get_dim("nO")).items():
            start = 0
            for name, shape in parts:
                grad = grads[weight]
                if len(shape) == 2:
                    grad, start = grad[start : start + shape[1]].T.contiguous(), start + shape[1]
                model.inc_grad(name, as_array(model, grad))


def as_tensor(array: Any) -> Tensor:
    """A tensor on the memory of an array."""
    if isinstance(array, numpy.ndarray):
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    return xp2torch(array)


def as_array(model: Model, tensor: Tensor) -> Any:
    """An array of the model's ops on the memory of a tensor."""
    return torch2xp(tensor, ops=model.ops)
