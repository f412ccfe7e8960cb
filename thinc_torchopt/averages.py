"""Averages of every param, thinc's and torch's.

An exponential moving average (EMA) with thinc's warm-up: at a param's update number t it keeps the share
`min((1 + t) / (10 + t), 0.9999)` of the average, which starts at zero.
SOURCE: thinc.backends.Ops.update_averages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from thinc.api import Shim

from .params import Param, array_of
from .types import Key

MAX_DECAY = 0.9999


def decay_at(step: int) -> float:
    """The share of the average that stays at a param's update number `step`, counted from 1."""
    return min((1.0 + step) / (10.0 + step), MAX_DECAY)


class Averages:
    """One average per param, on the param's device."""

    def __init__(self) -> None:
        self._tensors: dict[Key, torch.Tensor] = {}

    @torch.no_grad()
    def update(self, params: Iterable[Param]) -> None:
        """Move the average of each param towards its value.

        params (Iterable[Param]): Those that were updated, with `steps` counting that update.
        """
        by_step: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for param in params:
            average = self._tensors.get(param.key)
            if average is None or average.device != param.tensor.device or average.shape != param.tensor.shape:
                average = self._tensors[param.key] = self._allocate(param, average)
            averages, values = by_step.setdefault(param.steps, ([], []))
            averages.append(average)
            value = param.tensor.detach()
            values.append(value if value.dtype == average.dtype else value.to(average.dtype))
        for step, (averages, values) in by_step.items():
            torch._foreach_lerp_(averages, values, 1.0 - decay_at(step))

    def drop(self, key: Key) -> None:
        """Forget a param."""
        self._tensors.pop(key, None)

    def as_thinc(self, shims: Iterable[Shim]) -> dict[Any, Any]:
        """The averages in the form that `Model.use_params` and `nlp.use_params` take.

        shims (Iterable[Shim]): Those whose torch params are among the averages.
        RETURNS (dict): Arrays under thinc's `(node.id, name)`, which share memory with the averages. For a torch module a whole
            state dict, which its shim insists on, under `pytorch_{shim.id}_{name}`: averages, and what has none as it is.
        """
        found: dict[Any, Any] = {key: array_of(average) for key, average in self._tensors.items() if isinstance(key, tuple)}
        for shim in shims:
            averaged = {
                name: self._tensors[id(param)]
                for name, param in shim._model.named_parameters(remove_duplicate=False)
                if id(param) in self._tensors
            }
            if averaged:
                for name, value in shim._model.state_dict().items():
                    found[f"pytorch_{shim.id}_{name}"] = averaged.get(name, value)
        return found

    @staticmethod
    def _allocate(param: Param, old: torch.Tensor | None) -> torch.Tensor:
        # In half precision a share of 1e-4 would be rounded away.
        dtype = torch.promote_types(param.tensor.dtype, torch.float32)
        if old is not None and old.shape == param.tensor.shape:
            return old.to(param.tensor.device)
        return torch.zeros_like(param.tensor, dtype=dtype, requires_grad=False)
