"""What thinc's shims give to an optimizer, and how they get the result.

thinc's PyTorch shim and its subclasses: torch params, which are updated where they are. All other shims keep their params in a store of
another library (thinc's for TensorFlow and MXNet, or a user's own), in a form that only they know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from thinc.api import PyTorchShim, Shim

from .names import torch_params

# thinc's way to call an optimizer: key, weights, gradient -> weights, gradient.
Call = Callable[..., tuple[Any, Any]]


def torch_grads(shim: PyTorchShim, update_alone: Call) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    """Each torch param of a shim that has a gradient, with the gradient. What else the shim does in its `finish_update` is done.

    shim (PyTorchShim): The shim. If its gradient scaler found an overflow, it has no gradients for this update.
    update_alone (Call): Updates what a subclass gives to its optimizer that is none of its module's params.
    """
    if type(shim).finish_update is not PyTorchShim.finish_update:
        yield from _custom_torch_grads(shim, update_alone)
        return
    overflow = shim._grad_scaler.found_inf
    for _, param in torch_params(shim):
        if param.grad is not None:
            if overflow:
                param.grad = None
            else:
                yield param, param.grad
    shim._grad_scaler.update()


def _custom_torch_grads(shim: PyTorchShim, update_alone: Call) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    params = dict(torch_params(shim))
    given: dict[str, torch.Tensor] = {}

    def record(key: tuple[int, str], weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> tuple[Any, Any]:
        if key[1] in params:
            # A copy: the shim sets its own to zero as soon as it has its answer.
            given[key[1]] = torch.as_tensor(gradient, device=params[key[1]].device).clone()
            return weights, gradient
        return update_alone(("shim", *key), weights, gradient, lr_scale=lr_scale)

    shim.finish_update(record)  # type: ignore[arg-type]
    yield from ((params[name], grad) for name, grad in given.items())


@contextmanager
def backprop_through_frozen(shims: Iterable[Shim]) -> Iterator[None]:
    """Inside, the backward pass of a torch module whose params are all frozen does nothing, where torch would raise an error.

    shims (Iterable[Shim]): Those whose modules may have frozen params.
    """
    modules = [shim._model for shim in shims if isinstance(shim._model, torch.nn.Module)]
    handles = [module.register_forward_hook(_let_outputs_take_grads) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _let_outputs_take_grads(module: torch.nn.Module, inputs: Any, output: Any) -> None:
    """Let each tensor of an output that depends on nothing trainable be an end of the graph, which takes its gradient."""
    if isinstance(output, torch.Tensor):
        if torch.is_grad_enabled() and output.is_floating_point() and not output.requires_grad:
            output.requires_grad_(True)
    elif isinstance(output, Mapping):
        for value in output.values():
            _let_outputs_take_grads(module, inputs, value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            _let_outputs_take_grads(module, inputs, value)


class ForeignGrad(NamedTuple):
    """What a shim with a store of its own gives to its optimizer."""

    name: str
    weights: Any
    gradient: Any


def foreign_grad(shim: Shim) -> ForeignGrad | None:
    """Run a shim up to its call of the optimizer.

    Such a shim gathers params and gradients, calls the optimizer, and writes the result back, in one go. The result is not there yet:
    when it is, `write_back` runs the shim from the start once more.

    RETURNS (ForeignGrad): What it called with, all its params in one flat array as a rule. None: it did not call.
    """

    def stop(key: tuple[int, str], weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> tuple[Any, Any]:
        raise _Stop(ForeignGrad(key[1], weights, gradient))

    try:
        shim.finish_update(stop)
    except _Stop as stopped:
        return stopped.found
    return None


def write_back(shim: Shim, name: str, update_alone: Call, values: Any) -> None:
    """Give a shim its new values.

    name (str): The name in the shim's call of the optimizer.
    update_alone (Call): For a shim that calls for each of its params: all but the first are updated by themselves.
    values (Any): The new values, as the array that it called with.
    """

    def answer(key: tuple[int, str], weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> tuple[Any, Any]:
        if key[1] == name:
            return values, gradient * 0
        return update_alone(("shim", *key), weights, gradient, lr_scale=lr_scale)

    shim.finish_update(answer)


class _Stop(BaseException):
    def __init__(self, found: ForeignGrad):
        super().__init__(found.name)
        self.found = found
