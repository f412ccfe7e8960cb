"""The params of the layer: the weights of a cell in thinc's arrays.

A dense relation Wz is `W_z` (nO, nI), `U_z` (nO, nO) and `b_z` (nO,) in thinc: rows are units, as in all of thinc's
layers, and the input and the state have a matrix each, so either may grow. Relations without x have no W, those with
only x have no U. An elementwise relation keeps its name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy
import torch
from thinc.api import Model, torch2xp, uniform_init, xp2torch
from torch import Tensor

from ..checks import Section
from .cells import Cell
from .relations import Held, Relation, Weights

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
    (weight, *bias) = relation.weight_names
    if not bias:
        return {weight: [(weight, (units,))]}
    rest = relation.name.removeprefix("W")
    suffix = f"_{rest}" if rest else ""
    others = len(relation.inputs) - relation.inputs.count("x")
    matrices: _Parts = [(f"W{suffix}", (units, width))] if "x" in relation.inputs else []
    if others:
        matrices.append((f"U{suffix}", (units, units * others)))
    return {weight: matrices, bias[0]: [(f"b{suffix}", (units,))]}


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
        init = dense if len(relation.weight_names) > 1 else elementwise
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


def check_real(name: str, tensor: Tensor, where: Section) -> Tensor:
    """RAISES (ConfigError): Complex numbers: torch would drop their imaginary part."""
    if tensor.is_complex():
        where.refuse(name, "real numbers", str(tensor.dtype))
    return tensor


def as_array(model: Model, tensor: Tensor) -> Any:
    """An array of the model's ops on the memory of a tensor."""
    return torch2xp(tensor, ops=model.ops)


# ---------------------------------------------------------------------- torch's modules

_GATES = {torch.nn.GRU: "rzn", torch.nn.LSTM: "ifgo", torch.nn.RNN: ("",)}


def params_from_torch(module: torch.nn.RNNBase, layer: int, *, reverse: bool) -> Mapping[str, Tensor]:
    """The params of one layer and direction of a torch module, by our names. torch has two biases for each gate; only
    their sum matters, except for the last gate of a GRU.
    """
    suffix = f"_l{layer}" + "_reverse" * reverse
    gates = next(gates for cls, gates in _GATES.items() if isinstance(module, cls))
    parts = {}
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        tensor = getattr(module, name + suffix, torch.zeros(len(gates) * module.hidden_size)).detach()
        parts[name] = tensor.chunk(len(gates))
    found: dict[str, Tensor] = {}
    for i, gate in enumerate(gates):
        end = f"_{gate}" if gate else ""
        W, U, b_x, b_h = (parts[name][i] for name in parts)
        if gate == "n":
            found |= {"W_n": W, "b_n": b_x, "U_hn": U, "b_hn": b_h}
        else:
            found |= {f"W{end}": W, f"U{end}": U, f"b{end}": b_x + b_h}
    return found
