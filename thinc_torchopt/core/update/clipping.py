"""Gradient norms, and clipping: by these norms, by value, or adaptive.

Norms take one pass over the gradients and one host sync for any number of tensors. The guard against bad gradients
(guard.py) uses them too. Clipping by value and adaptive clipping need no norms: they work where the gradients are.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence

import torch

from .. import kernels
from ..params import CHUNK, Param, as_one_vector
from ..types import ClipBy

# torch.nn.utils.clip_grad_norm_ adds it to the norm. So do we where the meaning is the same ("global", "component").
NORM_EPS = 1e-6
# From the paper on adaptive clipping: the lowest norm of a unit's weights; otherwise params of 0 could never change.
UNIT_EPS = 1e-3


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
            away.setdefault(device, []).append((indices, torch.stack(kernels.norms(chosen, _wide(dtype)))))
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
        chunks = flat.split(CHUNK) if flat.numel() > CHUNK else (flat,)  # each call on a tensor takes a microsecond
        norms.append(math.sqrt(sum([torch.dot(chunk, chunk).item() for chunk in chunks])))
    return norms


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype for norms: in half precision they would overflow at 65,504."""
    return torch.promote_types(dtype, torch.float32)


def total_norm(norms: Sequence[float]) -> float:
    """The 2-norm of tensors as one vector, from their norms. Finite if these are and a float can hold it."""
    try:
        total = math.sqrt(math.fsum(map(operator.mul, norms, norms)))
    except OverflowError:
        total = math.inf
    # Squares overflow from 1e154 on.
    return total if total < math.inf else math.hypot(*norms)


# ---------------------------------------------------------------------- clipping


def clip_grads(params: Sequence[Param], norms: Sequence[float], limit: float, by: ClipBy, *, scale: float) -> float:
    """Clip the gradients of params, or return the factor to clip them by.

    params (Sequence[Param]): Params, each with a gradient.
    norms (Sequence[float]): The norm of each gradient. Not needed for "value" and "adaptive".
    limit (float): `grad_clip`: the largest norm or value, or for "adaptive" the largest norm of a gradient as a
        fraction of its param's norm.
    by (ClipBy): The kind of clipping: see `clip_factors`, `clip_values`, `clip_units`.
    scale (float): A factor for gradients before clipping.
    RETURNS (float): A factor that the caller must apply to all gradients.
    """
    if by == "value" or by == "adaptive":
        grads = [param.grad for param in params]
        scale_grads(grads, [scale] * len(grads))
        if by == "value":
            clip_values(grads, limit)
        else:
            clip_units([param.tensor for param in params], grads, limit)
        return 1.0
    norms = [scale * norm for norm in norms]
    factors = clip_factors(norms, [param.component for param in params] if by == "component" else (), limit, by)
    if isinstance(factors, float):
        return scale * factors
    scale_grads([param.grad for param in params], [scale * factor for factor in factors])
    return 1.0


def clip_factors(norms: Sequence[float], components: Sequence[str], max_norm: float, by: ClipBy) -> float | list[float]:
    """Factors for gradients that limit each norm to `max_norm`.

    norms (Sequence[float]): Norm of each gradient.
    components (Sequence[str]): Component of each gradient. Only needed for "component".
    max_norm (float): Largest norm allowed.
    by ("global" | "component" | "param"): The norm of all gradients, of each component's, or of each tensor's.
    RETURNS (float | list[float]): One factor for all, or one for each gradient. At most 1.
    SOURCE: torch.nn.utils.clip_grad_norm_ ("global", "component"); thinc.backends.Ops.clip_gradient ("param").
    """
    if by == "global":
        return _factor(norms, max_norm)
    if by == "param":
        return [max_norm / norm if max_norm <= norm < math.inf else 1.0 for norm in norms]
    of_component: dict[str, list[float]] = {}
    for component, norm in zip(components, norms):
        of_component.setdefault(component, []).append(norm)
    factors = {name: _factor(group, max_norm) for name, group in of_component.items()}
    return [factors[component] for component in components]


def _factor(norms: Sequence[float], max_norm: float) -> float:
    norm = total_norm(norms)
    # A non-finite norm can't be clipped; the guard decides on such updates.
    return min(1.0, max_norm / (norm + NORM_EPS)) if norm < math.inf else 1.0


def scale_grads(grads: Sequence[torch.Tensor], factors: Sequence[float]) -> None:
    """Multiply gradients in place, except where the factor is 1."""
    scaled = [(grad, factor) for grad, factor in zip(grads, factors) if factor != 1.0]
    kernels.mul_([grad for grad, _ in scaled], [factor for _, factor in scaled])


def clip_values(grads: Sequence[torch.Tensor], limit: float) -> None:
    """Clip each element of gradients to -limit and limit, in place.

    SOURCE: torch.nn.utils.clip_grad_value_.
    """
    kernels.clamp_([grad for grad in grads if grad.is_cuda], limit)
    for grad in grads:
        if not grad.is_cuda:  # in one pass
            grad.clamp_(-limit, limit)


@torch.no_grad()
def clip_units(params: Sequence[torch.Tensor], grads: Sequence[torch.Tensor], ratio: float) -> None:
    """Adaptive gradient clipping: scale gradients in place, so that no unit's norm exceeds `ratio` times its weights'
    norm.

    A unit is one index of the first dimension, in thinc as in torch: an output with all of its inputs (Maxout's pieces
    together), or a row of an embedding. A tensor of one dimension, such as a bias, is one unit, as in the paper's code.

    params (Sequence[Tensor]): Params of any shapes.
    grads (Sequence[Tensor]): The gradient of each. Shape: as the param.
    ratio (float): Largest norm of a unit's gradient as a fraction of its weights' norm, which counts as 0.001 at least.
    SOURCE: Brock, De, Smith, Simonyan (2021): High-Performance Large-Scale Image Recognition Without Normalization,
        https://arxiv.org/abs/2102.06171, equation 3; optax.adaptive_grad_clip; timm.utils.agc.
    """
    for param, grad in zip(params, grads):
        grad.mul_(_factors(_unit_norms(param), _unit_norms(grad), ratio))


def _factors(of_params: torch.Tensor, of_grads: torch.Tensor, ratio: float) -> torch.Tensor:
    """The factors for units from the norms of both, which are written over."""
    # A gradient of 0 gives an infinite factor; it becomes 1.
    return of_params.clamp_(min=UNIT_EPS).mul_(ratio).div_(of_grads).clamp_(max=1.0)


def _unit_norms(tensor: torch.Tensor) -> torch.Tensor:
    """The 2-norm of each unit, in a shape that broadcasts."""
    dims = tuple(range(1, tensor.ndim)) or None
    norms: torch.Tensor = torch.linalg.vector_norm(tensor, dim=dims, keepdim=True, dtype=_wide(tensor.dtype))
    return norms
