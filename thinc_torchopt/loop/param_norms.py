"""Norms of params, of their gradients and of their updates, for rules and listeners that ask for them.

Each takes one pass over the tensors, and one wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..core import kernels
from ..core.optimizer import TorchOptimizer
from ..core.params import Param
from ..core.update import grad_norms, total_norm

Norms = dict[str, Any]


class ParamNorms:
    """2-norms over all trained params: `total`, `components` and `groups` by name. Groups are those of learning rates.

    optimizer (TorchOptimizer): The run's.
    """

    def __init__(self, optimizer: TorchOptimizer):
        self._optimizer = optimizer
        self._before: tuple[list[Param], list[torch.Tensor]] = [], []

    def of_params(self) -> Norms:
        params = self._optimizer.trained_params
        return _norms(params, [param.tensor.detach() for param in params])

    def of_grads(self) -> Norms:
        """Before clipping. Of params without a gradient there are none: call it at `on_pre_optimizer_step`."""
        params = self._optimizer.params_to_update
        return _norms(params, [param.grad for param in params])

    def keep(self) -> None:
        """Copy the params that the next update changes, for `of_update`."""
        params = self._optimizer.params_to_update
        copies = [torch.empty_like(param.tensor, requires_grad=False) for param in params]
        kernels.copy_(copies, [param.tensor.detach() for param in params])
        self._before = params, copies

    def of_update(self) -> Norms | None:
        """Of the differences from the params at `keep`. None: these were not kept."""
        params, before = self._before
        if not params:
            return None
        return _norms(params, kernels.differences([param.tensor.detach() for param in params], before))


def _norms(params: Sequence[Param], tensors: Sequence[torch.Tensor]) -> Norms:
    components: dict[str, list[float]] = {}
    groups: dict[str, list[float]] = {}
    norms = grad_norms(tensors)
    for param, norm in zip(params, norms):
        components.setdefault(param.component, []).append(norm)
        groups.setdefault(param.settings.label, []).append(norm)
    return {
        "total": total_norm(norms),
        "components": {name: total_norm(found) for name, found in components.items()},
        "groups": {name: total_norm(found) for name, found in groups.items()},
    }
