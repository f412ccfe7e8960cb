"""Gradient norms, for clipping by norms (clipping.py) and the guard against bad gradients (guard.py).

They take one pass over the gradients and one host sync for any number of tensors.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence

import torch

from .. import kernels
from ..params import CHUNK, Param, as_one_vector


def norms_of_grads(params: Sequence[Param]) -> list[float]:
    """As `grad_norms`, of the gradients of params, in half the time for many small ones. `Param.flat_grad` halves the
    rest.
    """
    flats: list[torch.Tensor] = []
    for param in params:
        flat = param.flat_grad
        if flat is None and (flat := as_one_vector(param.grad)) is None:
            return grad_norms([param.grad for param in params])
        flats.append(flat)
    return list(map(math.sqrt, map(torch.Tensor.item, map(torch.dot, flats, flats))))


def grad_norms(grads: Sequence[torch.Tensor]) -> list[float]:
    """The 2-norm of each gradient.

    grads (Sequence[Tensor]): Gradients, of any devices and dtypes.
    RETURNS (list[float]): Norms; NaN or infinite where a gradient is not finite (or too large to square).
    """
    by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, grad in enumerate(grads):
        by_kind.setdefault((grad.device, grad.dtype), []).append(i)
    norms = [0.0] * len(grads)
    away: dict[torch.device, list[tuple[list[int], torch.Tensor]]] = {}
    for (device, dtype), indices in by_kind.items():
        chosen = [grads[i] for i in indices]
        if device.type == "cpu":
            for i, norm in zip(indices, _norms_on_cpu(chosen)):
                norms[i] = norm
        else:
            # Half precision would overflow at 65,504.
            wide = torch.float32 if dtype.itemsize < 4 else None
            away.setdefault(device, []).append((indices, torch.stack(kernels.norms(chosen, wide))))
    for parts in away.values():
        # All dtypes together: here the host waits for the device.
        found = torch.cat([part for _, part in parts]).tolist()
        for i, norm in zip(itertools.chain.from_iterable(indices for indices, _ in parts), found):
            norms[i] = norm
    return norms


def _norms_on_cpu(grads: Sequence[torch.Tensor]) -> list[float]:
    norms = []
    for grad in grads:
        flat = grad.reshape(-1)
        if flat.dtype.itemsize < 4:
            flat = flat.float()
        chunks = flat.split(CHUNK) if flat.numel() > CHUNK else (flat,)
        norms.append(math.sqrt(sum([torch.dot(chunk, chunk).item() for chunk in chunks])))
    return norms


def total_norm(norms: Sequence[float]) -> float:
    """The 2-norm of tensors as one vector, from their norms. Finite if these are and a float can hold it."""
    try:
        total = math.sqrt(math.fsum(map(operator.mul, norms, norms)))
    except OverflowError:
        total = math.inf
    # Squares overflow from 1e154 on.
    return total if total < math.inf else math.hypot(*norms)
