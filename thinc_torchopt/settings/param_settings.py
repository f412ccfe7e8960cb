"""What the settings say for one param."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..learn_rate import NamedPolicy, Warmup
from ..schedules import Schedule


@dataclass(frozen=True)
class ParamSettings:
    """What holds for a param. Values may be schedules.

    blocks (tuple[str, ...]): The names of the blocks that it is from, e.g. ("encoder", "skip_decay").
    algorithm (int): Which of the cascade's candidates.
    options (Mapping[str, Any]): All options of that algorithm.
    learn_rate (float | Schedule | None): None: the optimizer's.
    lr_scale (float | Schedule): From a block.
    layer (int | None): Where rates decay by layers: which one it is in.
    layer_scale (float): From [layer_decay].
    frozen_until (float): The first step that updates it; infinite: none.
    policy (NamedPolicy | None): What becomes of the learning rate from that step on.
    apart (bool): No param with another label is put into the same group: its rate may come to differ.
    joined_at (int | None): For params that came in mid-training: after how many updates.
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
    policy: NamedPolicy | None = None

    @cached_property
    def label(self) -> str:
        """What its group is called: "encoder+skip_decay", and with a layer "encoder+skip_decay/layer-3"."""
        label = "+".join(self.blocks)
        return label if self.layer is None else f"{label}/layer-{self.layer}"

    @property
    def names(self) -> set[str]:
        """By what its group can be chosen: its label, and each of the blocks."""
        return {self.label, *self.blocks}

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for params that can be in one torch param group: numbers by value, schedules by identity."""
        factors = (self.learn_rate, self.lr_scale, self.layer_scale)
        if self.policy is not None:
            return (
                self.algorithm,
                self.policy,
                self.frozen_until,
                *map(_hashable, factors),
                self.joined_at,
                self._options_key,
                *self._label_key,
            )
        scale = math.prod(factor for factor in factors if isinstance(factor, float))
        moving = tuple(_hashable(factor) for factor in factors if not isinstance(factor, float)) if scale else ()
        return (
            self.algorithm,
            scale,
            moving,
            self.joined_at,
            self._options_key,
            *self._label_key,
        )

    @property
    def _label_key(self) -> tuple[Any, ...]:
        return (self.blocks, self.layer) if self.apart else ()

    @property
    def _options_key(self) -> tuple[Any, ...]:
        return tuple((name, _hashable(value)) for name, value in sorted(self.options.items()))


def _hashable(value: Any) -> Any:
    if isinstance(value, Schedule):
        return "schedule", id(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_hashable, value))
    return repr(sorted(value.items(), key=str)) if isinstance(value, dict) else value
