"""Mixed precision: the gradients of a torch module when thinc scales them.

thinc scales gradients up before each backward pass, and scales down after it what is in `.grad` then: the sum of all
passes since the last update. With several passes for one update (gradient accumulation, a module that is used twice in
a forward pass) all but the last would be scaled down more than once. Here each pass has `.grad` to itself, and the sums
are made afterwards.
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


class _Inside(threading.local):
    """In how many blocks of `scaling_all_apart` this thread is."""

    depth = 0


_inside = _Inside()


def scale_passes_apart(shim: Shim) -> None:
    """From now on scale each backward pass of a shim by itself. For shims whose gradients come to an optimizer of ours.

    Its scale becomes a float: with a whole number as `init_scale`, torch can't update it.
    """
    if isinstance(shim, PyTorchShim):
        _trained.add(shim)
        if is_scaling(shim):
            let_scale_be_float(scaler_of(shim))


@contextmanager
def scaling_all_apart() -> Iterator[None]:
    """Inside, scale each backward pass of any shim by itself: an optimizer of ours trains them all, also new ones."""
    _inside.depth += 1
    try:
        yield
    finally:
        _inside.depth -= 1


def backprop_apart(shim: PyTorchShim, backprop: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What is to take the place of the backward pass that `PyTorchShim.begin_update` returns: the same, unless the shim
    scales gradients for an optimizer of ours.
    """

    def backprop_alone(grads: Any) -> Any:
        if not is_scaling(shim) or not (_inside.depth or shim in _trained):
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
