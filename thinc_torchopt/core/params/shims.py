"""Pass gradients from thinc's shims to an optimizer, and the result back.

The params of thinc's PyTorch shim and its subclasses are updated in place. All other shims keep their params in a store
of another library (thinc's for TensorFlow and MXNet, or a user's own), in a form that only they know.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from thinc.api import PyTorchShim, Shim

from ..host import module_of, scaler_of

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


class ForeignGrad(NamedTuple):
    """Param and gradient in one call of a shim with its own store."""

    name: str
    weights: Any
    gradient: Any


# Calls of its optimizer by each shim in an update.
_calls: WeakKeyDictionary[Shim, int] = WeakKeyDictionary()


def foreign_grads(shim: Shim) -> list[ForeignGrad]:
    """The params and gradients that a shim passes to its optimizer.

    Such a shim collects params and gradients, calls the optimizer, and writes the result back, all in one function. The
    result is not known yet: later, `WriteBack` runs the shim again from the start. So here it is stopped in its last
    call. A shim that calls for each of its params needs answers in between: a copy of it gets them, and changes in
    place are undone.

    RETURNS (list[ForeignGrad]): One per call; usually one, with all params in one flat array.
    """
    calls = _calls.get(shim)
    if calls is None:
        try:
            calls = len(_record(_copy_of(shim), None))
        except Exception:
            calls = 1  # the shim itself raises the error below
        _calls[shim] = calls
    return _record(shim if calls < 2 else _copy_of(shim), max(calls, 1))


class WriteBack:
    """Passes the new values to a shim, once all are known.

    shim (Shim): The shim. names (Iterable[str]): The names in its calls of the optimizer.
    update_alone (Call): For calls under other names: updates each by itself.
    """

    def __init__(self, shim: Shim, names: Iterable[str], update_alone: Call):
        self._shim = shim
        self._missing = set(names)
        self._values: dict[str, Any] = {}
        self._update_alone = update_alone

    def add(self, name: str, values: Any) -> None:
        """Add the new values for a call, in the form of the shim's array. The last ones run the shim."""
        self._values[name] = values
        self._missing.discard(name)
        if not self._missing:
            self._shim.finish_update(self._answer)

    def _answer(self, key: tuple[int, str], weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> tuple[Any, Any]:
        if key[1] in self._values:
            return self._values[key[1]], gradient * 0
        _calls[self._shim] = _calls.get(self._shim, 1) + 1
        return self._update_alone(("shim", *key), weights, gradient, lr_scale=lr_scale)


def _record(shim: Shim, last: int | None) -> list[ForeignGrad]:
    """The calls of a shim, up to the call of this number. Each call returns its own arguments."""
    found: list[ForeignGrad] = []
    before: list[tuple[Any, Any]] = []

    def note(key: tuple[int, str], weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> tuple[Any, Any]:
        if len(found) + 1 == last == 1:
            found.append(ForeignGrad(key[1], weights, gradient))
            raise _Stop
        given = ForeignGrad(key[1], _clone(weights), _clone(gradient))
        before.extend([(weights, given.weights), (gradient, given.gradient)])
        found.append(given)
        if len(found) == last:
            raise _Stop
        return weights, gradient

    try:
        shim.finish_update(note)
    except _Stop:
        pass
    finally:
        for array, values in before:
            with suppress(ValueError):  # read-only, so unchanged
                array[...] = values
    return found


def _copy_of(shim: Shim) -> Shim:
    """A copy of a shim that shares no mutable values with it."""
    made = copy(shim)
    for name, value in list(vars(shim).items()):
        if isinstance(value, (dict, list, set)):
            setattr(made, name, copy(value))
    return made


def _clone(array: Any) -> Any:
    return array.clone() if isinstance(array, torch.Tensor) else array.copy()


class _Stop(BaseException):
    """Stops a shim in its call of the optimizer."""
