"""Gradients that were noted since the last update."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
from thinc.api import Model, PyTorchShim, Shim
from torch import Tensor

from ..params import (
    Param,
    ParamTable,
    WriteBack,
    clear_grads,
    foreign_grads,
    own_copy,
    scale_passes_apart,
    torch_grads,
)
from ..types import Key

# thinc's way to call an optimizer: key, weights, gradient -> weights, gradient.
Call = Callable[..., tuple[Any, Any]]


class NotedGrads:
    """The params that have a gradient for the next update, by key, and the shims that take part in it."""

    def __init__(self) -> None:
        self.params: dict[Key, Param] = {}
        self.shims: list[Shim] = []

    def note(
        self, table: ParamTable, key: Key, source: Any, grad: Any, callback: Callable[[Any], None] | None = None
    ) -> None:
        """Note a param with its gradient. That of a frozen param is dropped.

        table (ParamTable): All params: it is among these from now on.
        key, source, grad, callback: As in `TorchOptimizer.set_grad`.
        RAISES (ParamError | ShapeError): As there.
        """
        param = table.by_key.get(key)
        # Else it is thinc's array, as ever: tensors may change their data.
        if param is None or param.source is not source or isinstance(source, Tensor) or callback is not None:
            param = table.see(key, source, callback)
            if param is None:  # it is empty
                if callback is not None:
                    callback(source)
                return
            param.callback = callback
        # Else it is thinc's buffer, as ever: torch's `zero_grad` may have taken it away.
        if param.grad_source is not grad or param.grad_copy is not None or param.tensor.grad is None:
            param.set_grad(grad)
        if param.group is not None:
            self.params[key] = param
        else:
            clear_grads([param])
            if callback is not None:
                callback(param.in_form(param.tensor))

    def collect(self, table: ParamTable, model: Model, set_grad: Callable[..., None], update_alone: Call) -> None:
        """Collect all params of a model that have a gradient.

        set_grad (Callable): `TorchOptimizer.set_grad`, which notes each.
        update_alone (Callable): For arrays that a shim gives to its optimizer, and that are no params: thinc's
            interface of an optimizer.
        """
        for node in model.walk():
            for shim in node.shims:
                self._collect_from_shim(table, shim, model, set_grad, update_alone)
            for name in node.param_names:
                if node.has_grad(name):
                    grad = node.get_grad(name)
                    if isinstance(grad, numpy.generic):  # it will be set to zero in place, which a number can't be
                        grad = own_copy(grad)
                        node.set_grad(name, grad)
                    set_grad(table.array_of_node(node, name, model), grad, key=(node.id, name))

    def _collect_from_shim(
        self, table: ParamTable, shim: Shim, model: Model, set_grad: Callable[..., None], update_alone: Call
    ) -> None:
        self.shims.append(shim)
        scale_passes_apart(shim)
        if isinstance(shim, PyTorchShim):
            for param, grad in torch_grads(shim, update_alone):
                table.meet_torch_param(param, shim, model)
                set_grad(param, grad)
        elif found := foreign_grads(shim):
            back = WriteBack(shim, [name for name, _, _ in found], update_alone)
            for name, weights, gradient in found:
                key = table.name_shim_param(shim, name, model)
                set_grad(weights, gradient, partial(back.take, name), key=key)

    def take(self) -> tuple[list[Param], list[Shim]]:
        """Give away what was noted: the params whose gradient is still there, and the shims."""
        params, shims = [param for param in self.params.values() if param.tensor.grad is not None], self.shims
        self.forget()
        return params, shims

    def forget(self) -> None:
        """Drop what was noted."""
        self.params.clear()
        self.shims = []
