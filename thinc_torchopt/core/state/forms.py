"""The form of an optimizer's saved state: see core/schema.py. Params have lasting names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch

from ..algorithms import StateBeside
from ..rates import WriterState
from ..schema import Count, FirstStep, NotNegative
from ..settings import FreezeChange, RateChange

VERSION = 2
WHAT = "the state of the optimizer"


@dataclass
class SavedParam:
    """One param.

    shim (str | None): The name in the calls of a shim with its own store.
    updates (int): The number of its updates.
    joined_at, rate_factor, held_rate, frozen_until: As in `Param`.
    label: Of its settings.
    state (dict): torch's state of it.
    master (Tensor | None): Its float32 master, if it is of half precision and has one.
    """

    shape: list[Count]
    dtype: str
    shim: Optional[str]
    updates: Count
    joined_at: Optional[Count]
    label: str
    rate_factor: NotNegative
    held_rate: Optional[NotNegative]
    frozen_until: Optional[FirstStep]
    state: dict[str, Any]
    master: Optional[torch.Tensor]


@dataclass
class SavedGroup:
    """One param group.

    algorithm, path (str): Its algorithm, and the config path of that.
    params (list[str]): Their names.
    options (dict): Its options that no schedule moves, without switches that depend on the machine.
    state (dict): The algorithm's own values in it.
    rate, applied_rate (float): The last ones, without and with the scale of the run.
    """

    algorithm: str
    path: str
    params: list[str]
    options: dict[str, Any]
    state: dict[str, Any]
    rate: NotNegative
    applied_rate: NotNegative


@dataclass
class SavedSettings:
    """The values of settings that schedules may move."""

    learn_rate: NotNegative
    grad_clip: NotNegative


@dataclass
class SavedState:
    """The whole state.

    step (int): Of the schedules.
    params, groups: By name, and by label. Params are in the order in which they were added.
    grads: The gradients of params that have one, by name. None: zeros, see by_name.py.
    algorithms: Their state beside params and groups, by config path. averages, grad_scalers (by the path of the shim),
    guard, schedules: In the forms of their owners.
    """

    version: int
    step: Count
    settings: SavedSettings
    schedules: dict[str, Any]
    guard: dict[str, Any]
    learn_rates: WriterState
    params: dict[str, SavedParam]
    groups: dict[str, SavedGroup]
    grads: dict[str, Optional[torch.Tensor]]
    algorithms: dict[str, StateBeside]
    averages: Optional[dict[str, Any]]
    grad_scalers: dict[str, dict[str, Any]]
    freeze_changes: list[FreezeChange]
    rate_changes: list[RateChange]
