"""Gradient norms: one look at all gradients, from which clipping and the guard against bad ones follow.

The look costs one pass over the gradients and one host sync, however many tensors there are.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence

import torch

from .errors import NonFiniteGradError, NonFiniteGradWarning
from .params import Param
from .types import ClipBy

# torch.nn.utils.clip_grad_norm_ adds it to the norm; so do we where we have its meaning ("global", "component").
NORM_EPS = 1e-6


# Elements that BLAS sums at once. torch's own norm of 20M elements is off by a thousandth, and slower (benchmarks/README.md).
CHUNK = 1 << 20


def grad_norms(grads: Sequence[torch.Tensor]) -> list[float]:
    """The 2-norm of each gradient.

    grads (Sequence[Tensor]): Gradients, of any devices and dtypes.
    RETURNS (list[float]): Norms; NaN or infinite where a gradient is not finite (or too large to square).
    """
    by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, grad in enumerate(grads):
        by_kind.setdefault((grad.device, grad.dtype), []).append(i)
    norms = [0.0] * len(grads)
    for (device, dtype), indices in by_kind.items():
        chosen = [grads[i] for i in indices]
        if device.type == "cpu":
            found = _norms_on_cpu(chosen)
        else:
            # Half precision would overflow at 65,504.
            wide = torch.float32 if dtype.itemsize < 4 else None
            found = torch.stack(torch._foreach_norm(chosen, 2.0, wide)).tolist()
        for i, norm in zip(indices, found):
            norms[i] = norm
    return norms


def _norms_on_cpu(grads: Sequence[torch.Tensor]) -> list[float]:
    squares, counts = [], []
    for grad in grads:
        flat = grad.reshape(-1)
        if flat.dtype.itemsize < 4:
            flat = flat.float()
        chunks = flat.split(CHUNK) if flat.numel() > CHUNK else (flat,)
        squares += [torch.dot(chunk, chunk) for chunk in chunks]
        counts.append(len(chunks))
    sums = iter(torch.stack(squares).tolist())
    return [math.sqrt(sum(itertools.islice(sums, count))) for count in counts]


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


class Guard:
    """Keeps gradients that are not finite from the params.

    max_nonfinite (int): After so many skipped updates in a row it stops the training. 0: it lets everything pass.
    """

    def __init__(self, max_nonfinite: int):
        self.max_nonfinite = max_nonfinite
        self.skipped = 0
        self._culprit = ""

    def lets_pass(self, params: Sequence[Param], norms: Sequence[float]) -> bool:
        """Whether the update may be made.

        params (Sequence[Param]): The params that are to be updated.
        norms (Sequence[float]): The norm of each gradient.
        """
        bad = [param.name for param, norm in zip(params, norms) if not norm < math.inf]
        if bad and self.max_nonfinite:
            self._culprit = bad[0]
            return False
        return True

    def skip(self, params: Sequence[Param]) -> None:
        """Count a skipped update; warn at the first. Updates "in a row" are counted for each param: models may be updated in turns.

        RAISES (NonFiniteGradError): There were too many in a row.
        """
        self.skipped += 1
        for param in params:
            param.skipped += 1
        if self.skipped == 1:
            warnings.warn(
                NonFiniteGradWarning(
                    f"Skipped an update: the gradient of param '{self._culprit}' is not finite. All params stay as they were. "
                    "Further ones are skipped without a warning; optimizer.skipped_updates counts them."
                ),
                stacklevel=6,
            )
        in_a_row = max(param.skipped for param in params)
        if in_a_row >= self.max_nonfinite:
            raise NonFiniteGradError(
                f"Can't go on: {in_a_row} updates in a row had gradients that are not finite, the last one that of param "
                f"'{self._culprit}'. Params are as they were before the first of them. Lower learn_rate, check the training data, or "
                "raise max_nonfinite in [training.optimizer]."
            )
