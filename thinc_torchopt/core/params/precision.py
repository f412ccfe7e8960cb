"""The precision in which torch modules compute while they are trained: `precision` of TorchOptimizer, and thinc's own
mixed precision.

Only the forward and backward passes of a training are changed, that is `PyTorchShim.begin_update`. `predict` is left
alone, so the scores of a training are those of the saved model: both compute in float32.

bf16: the module's forward pass runs inside torch.autocast, by hooks for this one pass: thinc's shim switches an outer
autocast off. Outputs become float32 again, as NumPy and CuPy have no bfloat16. Params and gradients stay float32.
tf32: torch's own switches for products of float32 matrices are set for a pass, and restored.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from thinc.api import Model, PyTorchShim, Shim

from .. import kernels
from ..errors import ConfigError, ConfigWarning, PrecisionWarning
from ..host import (
    cpu_computes_bf16,
    cpu_has_bf16_lstm,
    is_in_mixed_precision,
    is_scaling,
    let_scale_be_float,
    module_of,
    scaler_of,
)
from ..types import Precision
from .shims import map_tensors

Backprop = Callable[[Any], Any]

# The precision of the shims that one of our optimizers trains. None of this is saved with a model.
_of_shim: WeakKeyDictionary[Shim, Precision] = WeakKeyDictionary()


class _Inside(threading.local):
    """The precision of the innermost `computing_all_in` of this thread. None: there is none."""

    precision: Precision | None = None


_inside = _Inside()


def compute_in(shims: Iterable[Shim], precision: Precision) -> None:
    """Compute the training passes of shims in this precision from now on, and scale each backward pass by itself: one
    of our optimizers trains them.

    The scale of thinc's mixed precision becomes a float: torch can't update an integer `init_scale`.
    """
    for shim in shims:
        if isinstance(shim, PyTorchShim):
            _of_shim[shim] = precision
            if is_scaling(shim):
                let_scale_be_float(scaler_of(shim))


def leave_to_others(model: Model[Any, Any]) -> None:
    """Compute and scale as thinc does from now on: another optimizer than ours trains the model."""
    for node in model.walk():
        for shim in node.shims:
            _of_shim.pop(shim, None)


@contextmanager
def computing_all_in(precision: Precision) -> Iterator[None]:
    """Inside, `compute_in` holds for all shims: one of our optimizers trains them all, also new ones."""
    before, _inside.precision = _inside.precision, precision
    try:
        yield
    finally:
        _inside.precision = before


def begin_update_in_precision(
    begin_update: Callable[[PyTorchShim, Any], tuple[Any, Backprop]], shim: PyTorchShim, inputs: Any
) -> tuple[Any, Backprop]:
    """Call `PyTorchShim.begin_update` in the precision of the shim.

    RAISES (ConfigError): The model has mixed precision of its own.
    """
    precision = _inside.precision or _of_shim.get(shim, "float32")
    if precision == "float32":
        return begin_update(shim, inputs)
    if precision == "tf32":
        with _in_tf32():
            output, backprop = begin_update(shim, inputs)
        return output, _with_tf32(backprop)
    if is_in_mixed_precision(shim):
        raise ConfigError(_is_mixed(""))
    with _autocast_in_forward(module_of(shim), shim.device.type):
        return begin_update(shim, inputs)


# ---------------------------------------------------------------------- bf16


@contextmanager
def _autocast_in_forward(module: torch.nn.Module | None, device_type: str) -> Iterator[None]:
    """Inside, the forward passes of a module in this thread run inside torch.autocast."""
    if module is None:
        yield
        return
    thread = threading.get_ident()
    entered: list[AbstractContextManager[Any]] = []

    def enter(module: Any, args: Any) -> None:
        if threading.get_ident() == thread:
            entered.append(torch.autocast(device_type, torch.bfloat16))
            entered[-1].__enter__()

    def leave(module: Any, args: Any, output: Any) -> Any:
        if threading.get_ident() != thread or not entered:
            return output
        entered.pop().__exit__(None, None, None)
        return in_float32(output)

    handles = [
        module.register_forward_pre_hook(enter, prepend=True),
        module.register_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def in_float32(value: Any) -> Any:
    """A module's output with its tensors of bfloat16 as float32: see `map_tensors`."""
    return map_tensors(lambda tensor: tensor.float() if tensor.dtype is torch.bfloat16 else tensor, value)


# ---------------------------------------------------------------------- tf32


def _tf32_switches() -> list[tuple[Any, str, Any]]:
    """torch's switches for TF32: the object, the attribute, and the value that switches it on."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(cuda, "fp32_precision"):  # torch 2.9
        places: list[Any] = [cuda, cudnn.conv, cudnn.rnn]  # type: ignore[attr-defined]
        return [(place, "fp32_precision", "tf32") for place in places]
    return [(place, "allow_tf32", True) for place in (cuda, cudnn)]


@contextmanager
def _in_tf32() -> Iterator[None]:
    switches = _tf32_switches()
    before = [getattr(place, name) for place, name, _ in switches]
    for place, name, value in switches:
        setattr(place, name, value)
    try:
        yield
    finally:
        for (place, name, _), value in zip(switches, before):
            setattr(place, name, value)


def _with_tf32(backprop: Backprop) -> Backprop:
    def backprop_in_tf32(grads: Any) -> Any:
        with _in_tf32():
            return backprop(grads)

    return backprop_in_tf32


# ---------------------------------------------------------------------- before a training


def check_precision(precision: Precision, shims: Iterable[tuple[str, Shim]]) -> None:
    """Check that the modules of a pipeline can be trained in a precision, and warn where it has no effect or is slow.

    shims (Iterable): All shims that are trained, with their paths.
    RAISES (ConfigError): A model or a device rules it out.
    """
    if precision == "float32":
        return
    setting = f'precision = "{precision}" in [training.optimizer]'
    of_torch = {path: shim for path, shim in shims if isinstance(shim, PyTorchShim)}
    if not of_torch:
        _warn(
            ConfigWarning,
            f"{setting} has no effect: it is for torch modules, and no trained component has one. thinc's own layers "
            "compute in float32. Remove the setting.",
        )
    mixed = [path for path, shim in of_torch.items() if is_in_mixed_precision(shim)]
    if mixed and precision == "bf16":
        raise ConfigError(_is_mixed(f" of '{mixed[0]}'"))
    for path, shim in of_torch.items() if precision == "bf16" else ():
        if shim.device.type == "cpu" and _has_lstm(shim) and not cpu_has_bf16_lstm():
            raise ConfigError(
                f"Can't set {setting}: expected a CPU with instructions for bfloat16, or a GPU, as there is an LSTM in "
                f"'{path}', found a CPU for which torch has none. Remove the setting."
            )
    for kind in sorted({shim.device.type for shim in of_torch.values()}):
        (_check_tf32 if precision == "tf32" else _check_bf16)(kind, setting)


def _has_lstm(shim: PyTorchShim) -> bool:
    module = module_of(shim)
    return module is not None and any(isinstance(part, torch.nn.LSTM) for part in module.modules())


def _check_tf32(kind: str, setting: str) -> None:
    if kind != "cuda":
        _warn(
            ConfigWarning,
            f"{setting} has no effect: it is for NVIDIA's GPUs, and the models are on the device '{kind}'. Remove the "
            "setting, or train on a GPU: --gpu-id 0.",
        )
    elif not torch.cuda.is_tf32_supported():
        _warn(
            ConfigWarning,
            f"{setting} has no effect: it is for NVIDIA's GPUs from the generation Ampere (2020) on, and this is "
            f"'{torch.cuda.get_device_name()}'. Remove the setting.",
        )


def _check_bf16(kind: str, setting: str) -> None:
    if not torch.amp.is_autocast_available(kind):
        raise ConfigError(
            f"Can't set {setting}: expected a device on which torch has it, found '{kind}'. Remove the setting."
        )
    is_fast: dict[str, Callable[[], bool]] = {
        "cpu": cpu_computes_bf16,
        "cuda": lambda: torch.cuda.is_bf16_supported(including_emulation=False),
    }
    if kind in is_fast and not is_fast[kind]():
        name = "this CPU" if kind == "cpu" else f"'{torch.cuda.get_device_name()}'"
        _warn(
            PrecisionWarning,
            f"{setting} makes the training slower here: {name} has no instructions for bfloat16, so torch emulates it. "
            "Remove the setting.",
        )


def _is_mixed(of: str) -> str:
    return (
        'Can\'t set precision = "bf16" in [training.optimizer]: expected models without mixed precision of their own, '
        f"found mixed_precision = true in the model{of}: float16, with a gradient scaler. Set mixed_precision = false "
        'there, or precision = "float32" here.'
    )


def _warn(category: type[Warning], text: str) -> None:
    warnings.warn(category(text), stacklevel=4)


# ---------------------------------------------------------------------- mixed precision of thinc's own
#
# thinc scales gradients up before each backward pass, and after it scales `.grad` down: the sum of all passes since the
# last update. With several passes for one update (gradient accumulation, a module that is used twice in a forward pass)
# all but the last would be scaled down more than once. Here `.grad` is empty for each pass, and the sums are made
# afterwards.
# SOURCE: thinc/shims/pytorch.py (8.3.14), `begin_update`.


def backprop_apart(shim: PyTorchShim, backprop: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap the backward pass from `PyTorchShim.begin_update`. Unchanged unless the shim scales gradients for one of our
    optimizers.
    """

    def backprop_alone(grads: Any) -> Any:
        if not is_scaling(shim) or (_inside.precision is None and shim not in _of_shim):
            return backprop(grads)
        before = [(param, param.grad) for param in module_of(shim).parameters() if param.grad is not None]
        for param, _ in before:
            param.grad = None
        try:
            inputs = backprop(grads)
            both = [(total, param.grad) for param, total in before if param.grad is not None]
            kernels.add_([total for total, _ in both], [grad for _, grad in both])
            return inputs
        finally:
            for param, total in before:
                param.grad = total

    return backprop_alone
