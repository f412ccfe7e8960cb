"""Gradients since the last update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from thinc.api import Model, PyTorchShim, Shim

from . import kernels
from .errors import ParamError
from .host import grads_of
from .param_table import ParamTable
from .params import Param, clear_grads, compute_in, own_copy, places_in, torch_grads, update_in_calls
from .types import Key, Precision

# thinc's way to call an optimizer: key, weights, gradient -> weights, gradient.
Call = Callable[..., tuple[Any, Any]]


class NotedGrads:
    """The params that have a gradient for the next update, by key, and the shims of the updated models."""

    def __init__(self) -> None:
        self.params: dict[Key, Param] = {}
        self.shims: list[Shim] = []
        # Those with a store of their own, each with the root of its model: they run in `update`.
        self._with_store: list[tuple[Shim, Model[Any, Any]]] = []

    def note(
        self, table: ParamTable, key: Key, source: Any, grad: Any, callback: Callable[[Any], None] | None = None
    ) -> None:
        """Add a param with its gradient. The gradient of a frozen or excluded param is dropped.

        table (ParamTable): All params. The param is added to it.
        key, source, grad, callback: As in `TorchOptimizer.set_grad`.
        RAISES (ParamError | ShapeError): As there.
        """
        param = table.by_key.get(key)
        # Otherwise thinc's array is the key: tensors may change their data.
        if param is None or param.source is not source or not param.is_array or callback is not None:
            param = table.see(key, source, callback)
            if param is None:  # it is empty, or excluded
                if callback is not None:
                    callback(source)
                elif isinstance(source, torch.nn.Parameter):
                    source.grad = None
                else:
                    grad[...] = 0
                return
            param.callback = callback
        if not param.has_grad(grad):
            param.set_grad(grad)
        if param.group is not None:
            self.params[key] = param
        else:
            _drop_grad(param, callback)

    def collect(
        self,
        table: ParamTable,
        model: Model[Any, Any],
        set_grad: Callable[..., None],
        update_alone: Call,
        *,
        sees_all: bool,
        precision: Precision,
    ) -> None:
        """Add all params of a model that have a gradient, by the names that they have now.

        table (ParamTable): All params. These are added to it.
        set_grad (Callable): `TorchOptimizer.set_grad`, which adds each; or a subclass's own.
        update_alone (Callable): thinc's interface of an optimizer, for arrays that a shim passes to its optimizer but
            that are not params.
        sees_all (bool): Call `set_grad` for each. False: not for unchanged ones, that is torch params, and arrays with
            the same gradient on the same memory as before.
        precision (Precision): Of the next passes of its shims.
        """
        places = places_in(model)
        table.follow_moved(model, places)
        compute_in((shim for _, shims in places for shim, _ in shims), precision)
        for node, shims in places:
            for shim, of_torch in shims:
                self._collect_from_shim(table, shim, of_torch, model, set_grad, update_alone, sees_all=sees_all)
            for key, array, grad in grads_of(node):
                param = table.by_key.get(key)
                if (
                    param is not None
                    and param.source is array
                    and param.is_array
                    and param.has_grad(grad)
                    and param.group is not None
                    and not sees_all
                ):
                    self.params[key] = param
                    continue
                if isinstance(grad, numpy.generic):  # it will be zeroed in place, which a number does not allow
                    grad = own_copy(grad)
                    node.set_grad(key[1], grad)
                set_grad(table.array_of_node(node, key[1], model), grad, key=key)

    def _collect_from_shim(
        self,
        table: ParamTable,
        shim: Shim,
        of_torch: Sequence[tuple[str, torch.nn.Parameter]],
        model: Model[Any, Any],
        set_grad: Callable[..., None],
        update_alone: Call,
        *,
        sees_all: bool,
    ) -> None:
        self.shims.append(shim)
        if isinstance(shim, PyTorchShim):
            copies: list[tuple[torch.Tensor, torch.Tensor]] = []
            try:
                for source, grad in torch_grads(shim, of_torch, update_alone):
                    param = table.add_torch_param(source, shim, model)
                    if param is not None and param.callback is None and param.group is not None and not sees_all:
                        param.set_grad(grad, copies)
                        self.params[param.key] = param
                    else:
                        set_grad(source, grad)
            finally:  # a gradient that is noted has its values
                kernels.copy_([copy for copy, _ in copies], [grad for _, grad in copies])
        elif all(known is not shim for known, _ in self._with_store):
            if any(known.id == shim.id for known, _ in self._with_store):
                raise ParamError(
                    f"Can't update two shims ({type(shim).__name__}) with the same id, {shim.id}: they call the "
                    "optimizer for their params under this id. A copied layer has the ids of the first one. Set "
                    "another one in the copy: shim.id = Shim.global_id = Shim.global_id + 1."
                )
            self._with_store.append((shim, model))

    def update(
        self,
        table: ParamTable,
        set_grad: Callable[..., None],
        update_alone: Callable[..., None],
        update: Callable[[], None],
    ) -> None:
        """Add the params that shims keep elsewhere, make the update, and pass the new values to these shims.

        table, set_grad: As in `collect`. update_alone, update (Callable): See `update_in_calls`.
        """
        shims, self._with_store = self._with_store, []
        update_in_calls(shims, table.name_shim_param, set_grad, update_alone, update)

    def pop_all(self) -> tuple[list[Param], list[Shim]]:
        """Remove and return everything: the params that still have their gradient, and the shims. The gradients of
        params that were frozen since are dropped.
        """
        params, shims = [param for param in self.params.values() if param.tensor.grad is not None], self.shims
        self.forget()
        for param in params:
            if param.group is None:
                _drop_grad(param, param.callback)
        return [param for param in params if param.group is not None], shims

    def forget(self) -> None:
        """Drop everything."""
        self.params = {}
        self.shims = []
        self._with_store = []


def _drop_grad(param: Param, callback: Callable[[Any], None] | None) -> None:
    """Drop the gradient of a frozen param, whose values stay. callback: As in `TorchOptimizer.set_grad`."""
    clear_grads([param])
    if callback is not None:
        callback(param.in_form(param.tensor))
