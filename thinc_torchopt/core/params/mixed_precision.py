"""Mixed precision: the gradients of a torch module when thinc scales them.

thinc scales gradients up before each backward pass, and after it scales `.grad` down: the sum of all passes since the
last update. With several passes for one update (gradient accumulation, a module that is used twice in a forward pass)
all but the last would be scaled down more than once. Here `.grad` is empty for each pass, and the sums are made
afterwards.
SOURCE: thinc/shims/pytorch.py (8.3.14), `begin_update`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from thinc.api import PyTorchShim, Shim

from .. import kernels
from ..host import is_scaling, let_scale_be_float, module_of, scaler_of

_trained: WeakSet[Shim] = WeakSet()


class _Scaling(threading.local):
    """The number of nested `scaling_all_apart` blocks in this thread."""

    depth = 0


_scaling = _Scaling()


def scale_passes_apart(shim: Shim) -> None:
    """Scale each backward pass of a shim by itself from now on. For shims that one of our optimizers trains.

    The scale becomes a float: torch can't update an integer `init_scale`.
    """
    if isinstance(shim, PyTorchShim):
        _trained.add(shim)
        if is_scaling(shim):
            let_scale_be_float(scaler_of(shim))


def scale_passes_together(shim: Shim) -> None:
    """Scale as thinc does from now on."""
    _trained.discard(shim)


@contextmanager
def scaling_all_apart() -> Iterator[None]:
    """Inside, scale each backward pass of any shim by itself: one of our optimizers trains them all, also new ones."""
    _scaling.depth += 1
    try:
        yield
    finally:
        _scaling.depth -= 1


def backprop_apart(shim: PyTorchShim, backprop: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap the backward pass from `PyTorchShim.begin_update`. Unchanged unless the shim scales gradients for one of our
    optimizers.
    """

    def backprop_alone(grads: Any) -> Any:
        if not is_scaling(shim) or not (_scaling.depth or shim in _trained):
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
