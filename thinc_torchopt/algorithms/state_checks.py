"""Checks of state before a param is trained with it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import StateError
from .state_roles import NEVER_NEGATIVE, PER_CELL, Role, role_of, roles_of


def check_states(
    optimizer_class: type[torch.optim.Optimizer], states: Iterable[tuple[str, Mapping[str, Any], Tensor]]
) -> None:
    """Check that params can be trained with their states.

    optimizer_class (type): The class of the optimizer.
    states (Iterable): Names, states and params.
    RAISES (StateError): A state differs from its param in shape or device, is not finite, or is negative and must not
        be.
    """
    roles = roles_of(optimizer_class)
    of_device: dict[torch.device, list[tuple[str, str, Role | None, Tensor, Tensor]]] = defaultdict(list)
    for name, state, param in states:
        if not state:
            raise StateError(f"Can't use the state of param '{name}': expected values, found none.")
        for key, value in state.items():
            role = role_of(roles, key)
            if isinstance(value, Tensor):
                if role in PER_CELL:
                    _check_place(name, key, value, param)
                if value.is_complex():
                    value = torch.view_as_real(value)
                if value.is_floating_point() and value.numel():
                    bounds = (value, value) if value.ndim == 0 else torch.aminmax(value)
                    of_device[value.device].append((name, key, role, *bounds))
            elif isinstance(value, (int, float)):
                _check_range(name, key, role, value, value)
    for found in of_device.values():  # one transfer for each device
        *_, lows, highs = zip(*found)
        for (name, key, role, *_), low, high in zip(found, torch.stack(lows).tolist(), torch.stack(highs).tolist()):
            _check_range(name, key, role, low, high)


def _check_place(name: str, key: str, value: Tensor, param: Tensor) -> None:
    if value.shape != param.shape:
        raise StateError(
            f"Can't use the state of param '{name}': {key} has shape {tuple(value.shape)}, the param has "
            f"{tuple(param.shape)}. It is the state of another param, or of the same before it grew."
        )
    if value.device != param.device or value.is_complex() != param.is_complex():
        raise StateError(
            f"Can't use the state of param '{name}': {key} is {value.dtype} on {value.device}, the param {param.dtype} "
            f"on {param.device}. Convert and move the model before its state."
        )


def _check_range(name: str, key: str, role: Role | None, low: float, high: float) -> None:
    if not -math.inf < low <= high < math.inf:
        raise StateError(
            f"Can't use the state of param '{name}': expected finite values in {key}, found NaN or infinite ones. A "
            "gradient was not finite at some point. Load an earlier state, or start with a new optimizer."
        )
    if low < 0 and role in NEVER_NEGATIVE:
        raise StateError(
            f"Can't use the state of param '{name}': expected values of at least zero in {key}, found {low:g}. It is "
            "damaged."
        )
