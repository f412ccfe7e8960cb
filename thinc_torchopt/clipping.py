"""Gradient norms: one look at all gradients, from which clipping and the guard against bad ones follow.

The look costs one pass over the gradients and one host sync, however many tensors there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .types import ClipBy

# torch.nn.utils.clip_grad_norm_ adds it to the norm; so do we where we have its meaning ("global", "component").
NORM_EPS = 1e-6


def grad_norms(grads: Sequence[torch.Tensor]) -> list[float]:
    """The 2-norm of each gradient.

    grads (Sequence[Tensor]): Gradients, of any devices and dtypes.
    RETURNS (list[float]): Norms; NaN or infinite where a gradient is not finite (or too large to square).
    """
    by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, grad in enumerate(grads):
        by_kind.setdefault((grad.device, grad.dtype), []).append(i)
    norms = [0.0] * len(grads)
    for (_, dtype), indices in by_kind.items():
        # Half precision would overflow at 65,504.
        wide = torch.float32 if dtype.itemsize < 4 else None
        found = torch._foreach_norm([grads[i] for i in indices], 2.0, wide)
        for i, norm in zip(indices, torch.stack(found).tolist()):
            norms[i] = norm
    return norms


def total_norm(norms: Sequence[float]) -> float:
    """The 2-norm of tensors as one vector, from the norm of each."""
    return math.sqrt(math.fsum(norm * norm for norm in norms))


def clip_factors(norms: Sequence[float], components: Sequence[str], max_norm: float, by: ClipBy) -> float | list[float]:
    """By how much to scale gradients, so that no norm is above `max_norm`.

    norms (Sequence[float]): Norm of each gradient.
    components (Sequence[str]): Component of each gradient.
    max_norm (float): Largest norm allowed.
    by ("global" | "component" | "param"): Whose norm: of all gradients, of each component's, of each tensor's.
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
    # Nothing can be clipped to a norm that is not finite; whether such an update is made is not decided here.
    return min(1.0, max_norm / (norm + NORM_EPS)) if norm < math.inf else 1.0


def scale_grads(grads: Sequence[torch.Tensor], factors: Sequence[float]) -> None:
    """Multiply gradients in place; those whose factor is 1 are not touched."""
    scaled = [(grad, factor) for grad, factor in zip(grads, factors) if factor != 1.0]
    if scaled:
        torch._foreach_mul_([grad for grad, _ in scaled], [factor for _, factor in scaled])
