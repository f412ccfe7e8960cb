"""The settings of one param, and its learning rate:

    learn_rate of a block, or of the optimizer; either may be a schedule
    x lr_scale of a block
    x [training.optimizer.layer_decay] -> the warm-up of params added in mid-training x the changes by rules, and by
    other code if adopted; or the rate that replaces it x the scale of the whole run, after a rollback: see
    core/rates/writer.py, which writes the result

The first three depend on the settings alone, the fourth and fifth on the group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..rates import NEW_PARAMS_FACTOR, Warmup
from ..schedules import Schedule, current


@dataclass(frozen=True)
class ParamSettings:
    """The settings of a param. Values may be schedules.

    blocks (tuple[str, ...]): The names of the blocks that match it, e.g. ("encoder", "skip_decay").
    algorithm (int): The index of its candidate in the cascade.
    options (Mapping[str, Any]): All options of that algorithm.
    learn_rate (float | Schedule | None): None: the optimizer's.
    lr_scale (float | Schedule): From a block.
    layer (int | None): Its layer, where rates decay by layers.
    layer_scale (float): From [layer_decay].
    frozen_until (float): The first step that updates it; infinite: none.
    apart (bool): Share a group only with params of the same label: its rate may change on its own.
    joined_at (int | None): The number of updates before it was added, if in mid-training.
    """

    blocks: tuple[str, ...]
    algorithm: int
    options: Mapping[str, Any]
    learn_rate: float | Schedule | None = None
    lr_scale: float | Schedule = 1.0
    layer: int | None = None
    layer_scale: float = 1.0
    frozen_until: float = 0.0
    joined_at: int | None = None
    apart: bool = False
    new_params: Warmup | None = None

    @cached_property
    def label(self) -> str:
        """The label of its group: "encoder+skip_decay", and with a layer "encoder+skip_decay/layer-3"."""
        label = "+".join(self.blocks)
        return label if self.layer is None else f"{label}/layer-{self.layer}"

    @property
    def names(self) -> set[str]:
        """The names that select its group: its label, and each of its blocks."""
        return {self.label, *self.blocks}

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for params that can share a torch param group: numbers by value, schedules by identity."""
        factors = (self.learn_rate, self.lr_scale, self.layer_scale)
        scale = math.prod(factor for factor in factors if isinstance(factor, float))
        moving = tuple(_hashable(factor) for factor in factors if not isinstance(factor, float)) if scale else ()
        return (
            self.algorithm,
            scale,
            moving,
            self.joined_at,
            tuple((name, _hashable(value)) for name, value in sorted(self.options.items())),
            *((self.blocks, self.layer) if self.apart else ()),
        )

    def rate_at_next_step(self, default: float, updates: int = 0) -> float:
        """The rate of params with these settings.

        default (float): That of params without one of their own. updates (int): Their updates so far.
        """
        rate = default if self.learn_rate is None else current(self.learn_rate)
        rate = rate * current(self.lr_scale) * self.layer_scale
        if self.joined_at is not None and self.new_params is not None:
            rate = self.new_params.rate(updates, NEW_PARAMS_FACTOR * rate)
        return rate


def _hashable(value: Any) -> Any:
    if isinstance(value, Schedule):
        return "schedule", id(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_hashable, value))
    return repr(sorted(value.items(), key=str)) if isinstance(value, dict) else value
