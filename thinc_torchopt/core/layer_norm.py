"""thinc's LayerNorm, computed by torch: in one pass over the data instead of some ten.

Outputs and gradients differ in rounding only. Arrays that torch can't take as they are, float64 among them, are left to
thinc.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
from thinc.api import Model
from thinc.layers import layernorm

from .stand_ins import StandIn

# SOURCE: thinc/layers/layernorm.py, `_get_moments`.
_EPS = 1e-08
_FLOAT32 = numpy.dtype("float32")


class TorchLayerNorm(StandIn):
    """The forward function of LayerNorm, by torch on one thread: sums over several have another order."""

    def __init__(self) -> None:
        super().__init__(layernorm.forward)

    def __call__(self, model: Model, X: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        G, b = model.get_param("G"), model.get_param("b")
        is_ours = self.is_on and torch.get_num_threads() == 1 and _fits(X, 2) and _fits(G, 1) and _fits(b, 1)
        if not is_ours or not X.shape[1] == G.size == b.size:
            return self.original(model, X, is_train)
        x, scale, shift = torch.from_numpy(X), torch.from_numpy(G), torch.from_numpy(b)
        Y, mean, by_deviation = torch.native_layer_norm(x, scale.shape, scale, shift, _EPS)

        def backprop(dY: Any) -> Any:
            dy = torch.from_numpy(dY if _fits(dY, 2) else numpy.array(dY, dtype=_FLOAT32, order="C"))
            dx, d_scale, d_shift = torch.ops.aten.native_layer_norm_backward(
                dy, x, scale.shape, mean, by_deviation, scale, shift, [True, True, True]
            )
            model.inc_grad("b", d_shift.numpy())
            model.inc_grad("G", d_scale.numpy())
            return dx.numpy()

        return Y.numpy(), backprop


def _fits(array: Any, ndim: int) -> bool:
    """Whether torch takes an array as it is: it warns of read-only ones."""
    return (
        type(array) is numpy.ndarray
        and array.dtype == _FLOAT32
        and array.ndim == ndim
        and array.size > 0
        and array.flags.c_contiguous
        and array.flags.writeable
    )
