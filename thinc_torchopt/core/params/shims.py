"""Pass gradients from thinc's shims to an optimizer, and the result back.

The params of thinc's PyTorch shim and its subclasses are updated in place. All other shims keep their params in a store
of another library (thinc's for TensorFlow and MXNet, or a user's own), in a form that only they know.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from thinc.api import Model, PyTorchShim, Shim

from ..host import module_of, scaler_of
from ..types import Key
from .param import own_copy

# thinc's way to call an optimizer: key, weights, gradient -> weights, gradient.
Call = Callable[..., tuple[Any, Any]]


def torch_grads(
    shim: PyTorchShim, params: Sequence[tuple[str, torch.nn.Parameter]], update_alone: Call
) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    """Each torch param of a shim that has a gradient, with the gradient. Does everything else that the shim's
    `finish_update` does.

    shim (PyTorchShim): The shim. After an overflow in its gradient scaler, it yields nothing.
    params (Sequence): From `names.torch_params`.
    update_alone (Call): Updates arrays that a subclass passes to its optimizer but that are not params of its module.
    """
    if type(shim).finish_update is not PyTorchShim.finish_update:
        yield from _custom_torch_grads(shim, dict(params), update_alone)
        return
    overflow = scaler_of(shim).found_inf
    for _, param in params:
        if param.grad is not None:
            if overflow:
                param.grad = None
            else:
                yield param, param.grad
    scaler_of(shim).update()


def _custom_torch_grads(
    shim: PyTorchShim, params: Mapping[str, torch.nn.Parameter], update_alone: Call
) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    given: dict[str, torch.Tensor] = {}

    def record(key: tuple[int, str], weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> tuple[Any, Any]:
        if key[1] in params:
            # A copy: the shim zeroes its own as soon as the call returns.
            given[key[1]] = torch.as_tensor(gradient, device=params[key[1]].device).clone()
            return weights, gradient
        return update_alone(("shim", *key), weights, gradient, lr_scale=lr_scale)

    shim.finish_update(record)  # type: ignore[arg-type]
    yield from ((params[name], grad) for name, grad in given.items())


@contextmanager
def backprop_through_frozen(shims: Iterable[Shim]) -> Iterator[None]:
    """Inside, the backward pass of a torch module with frozen params only does nothing; torch would raise an error.

    shims (Iterable[Shim]): Shims with modules that may have frozen params.
    """
    modules = [module_of(shim) for shim in shims if module_of(shim) is not None]
    handles = [module.register_forward_hook(_let_outputs_take_grads) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _let_outputs_take_grads(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
    """Let outputs that depend on no trainable param accept gradients: as other tensors, since layers above have read
    these, and read them again where the backward pass computes them again.
    """
    return map_tensors(_taking_grads, output) if torch.is_grad_enabled() else None


def _taking_grads(tensor: torch.Tensor) -> torch.Tensor:
    is_done = tensor.requires_grad or not tensor.is_floating_point()
    return tensor if is_done else tensor.detach().requires_grad_(True)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any, around: tuple[Any, ...] = ()) -> Any:
    """A module's output with its tensors replaced: in dicts, lists, tuples, dataclasses and other objects too. Where
    none changes, it is the same object.

    around (tuple): What it is in. An object in itself stays as it is.
    """
    if any(value is outer for outer in around):
        return value
    around = (*around, value)
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        items = [map_tensors(function, item, around) for item in value]
        if all(map(operator.is_, items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping):
        inside: Mapping[str, Any] = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        inside = {} if isinstance(value, (type, torch.nn.Module)) else getattr(value, "__dict__", {})
    found = {key: map_tensors(function, item, around) for key, item in inside.items()}
    changed = {key: item for key, item in found.items() if item is not inside[key]}
    if not changed:
        return value
    made: Any = copy(value)  # of its own class: Hugging Face's outputs have attributes too
    for key, item in changed.items():
        made.__setitem__(key, item) if isinstance(value, Mapping) else object.__setattr__(made, key, item)
    return made


def update_in_calls(
    shims: Sequence[tuple[Shim, Model[Any, Any]]],
    key_of: Callable[[Shim, str, Model[Any, Any]], Key],
    set_grad: Callable[..., None],
    update_alone: Callable[..., None],
    update: Callable[[], None],
) -> None:
    """Make an update of all params together, inside the calls of shims with a store of their own.

    Such a shim collects params and gradients, calls the optimizer, and writes the result back, all in one function. The
    result is known after the update. So the next shim runs inside this one's call, and the update inside the last
    one's: each shim runs once.

    shims (Sequence): Each with the root of its model. One that makes no call has nothing to update.
    key_of (Callable): `ParamTable.name_shim_param`.
    set_grad (Callable): `TorchOptimizer.set_grad`. Gets the param of each shim's first call.
    update_alone (Callable): Updates the param of a later call by itself: it comes when the update is over.
    update (Callable): Makes the update. After an error the shims keep their values, and let go of their gradients.
    """
    if not shims:
        update()
        return
    (shim, model), *others = shims
    joins = True
    errors: list[Exception] = []

    def answer(key: tuple[int, str], weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> tuple[Any, Any]:
        nonlocal joins
        if len(gradient) < 1:
            return weights, gradient
        if hasattr(gradient, "flags") and not getattr(gradient.flags, "writeable", True):
            gradient = own_copy(gradient)
        values = [weights]
        own_key = key_of(shim, key[1], model)
        if joins and lr_scale == 1.0:
            joins = False
            set_grad(weights, gradient, values.append, key=own_key)
            try:
                update_in_calls(others, key_of, set_grad, update_alone, update)
            except Exception as error:
                errors.append(error)
        else:
            update_alone(own_key, weights, gradient, values.append, lr_scale=lr_scale)
        gradient[...] = 0
        return values[-1], gradient

    shim.finish_update(answer)
    if errors:
        raise errors[0]
    if joins:
        update_in_calls(others, key_of, set_grad, update_alone, update)
