"""One of torch's param groups: params with equal settings. plan.py makes the groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from ..params import Param
from ..rates import GroupRecord, RateScale
from ..schedules import is_moving
from ..settings import ParamSettings

if TYPE_CHECKING:
    from .built_algorithm import BuiltAlgorithm

Key = tuple[Any, ...]

# Keys of a torch param group that are not state.
_NO_STATE = ("params", "param_names", "lr", "step")


class Group:
    """A torch param group, and the source of its learning rates: see `core.rates.RateSource`.

    key (tuple): The common values of its params, see `GroupPlan`.
    params (list[Param]): In the order in which they were added, which is torch's.
    entry (dict): torch's own dict.
    owner (BuiltAlgorithm): Its torch optimizer.
    default_rate (Callable): The learning rate of params without one of their own.
    label (str): Its label at the writer of rates.
    frozen_alike (Callable): Returns frozen params that would belong to it.

    Public: `record` (the group as the writer of rates left it), `first_values` (of `own_values`, before the first
    update), `moving` (the options that schedules move),
    `accepts_factor` (whether its fused kernel can scale the gradients: with a factor of 32 bits, too few for wider
    params).
    """

    def __init__(
        self,
        key: Key,
        params: list[Param],
        entry: dict[str, Any],
        owner: BuiltAlgorithm,
        default_rate: Callable[[], float],
        label: str,
        frozen_alike: Callable[[Group], Iterable[Param]],
    ):
        self.key = key
        self.params = params
        self.entry = entry
        self.owner = owner
        self._default_rate = default_rate
        self._frozen_alike = frozen_alike
        self.first_values = deepcopy(self.own_values)
        self.record = GroupRecord(label, self, entry["lr"])
        self.moving = [name for name, value in self.settings.options.items() if is_moving(value)]

    @property
    def settings(self) -> ParamSettings:
        """The settings of its params, which differ only in labels."""
        return self.params[0].settings

    @property
    def label(self) -> str:
        """The label of its first param, with a number if several groups have that one."""
        return self.record.label

    @property
    def is_fused(self) -> bool:
        """Whether a fused kernel updates its params."""
        return bool(self.key[1])

    @property
    def labels(self) -> set[str]:
        """The labels of its params; several if blocks have equal settings."""
        return {settings.label for settings in {id(param.settings): param.settings for param in self.params}.values()}

    @property
    def own_values(self) -> dict[str, Any]:
        """The algorithm's own values in the group, beside options: the step size that Prodigy found, for example."""
        settings = self.settings.options
        return {name: value for name, value in self.entry.items() if name not in _NO_STATE and name not in settings}

    def set_own_values(self, values: Mapping[str, Any]) -> None:
        """Replace the algorithm's own values."""
        for name in self.own_values.keys() - values.keys():
            del self.entry[name]
        self.entry.update(values)

    @property
    def state(self) -> dict[str, Any]:
        """The own values of algorithms whose groups keep them. Otherwise each param has those of its last update, in
        its state: params of a group may have been updated at different steps.
        """
        return {} if self.owner.algorithm.counts_for_group else self.own_values

    @property
    def settings_to_share(self) -> Any:
        """Equal for groups that can share one step size that their algorithm finds."""
        options = {name: value for name, value in self.entry.items() if name in self.settings.options}
        return self.entry["lr"], repr(sorted((options | {"weight_decay": None}).items()))

    def set_params(self, params: list[Param]) -> None:
        """Set its params."""
        self.params = params
        self.entry["params"] = [param.tensor for param in params]
        self.accepts_factor = self.is_fused and not any(param.dtype is torch.float64 for param in params)
        for param in params:
            param.group = self

    # ------------------------------------------------------------------ learning rates

    def rate_at(self, step: int) -> float:
        """The rate of the next step by settings and schedules."""
        settings = self.settings
        updates = max(param.steps for param in self.params) if settings.joined_at is not None else 0
        return settings.rate_at_next_step(self._default_rate(), updates)

    @property
    def scale(self) -> RateScale:
        """The effect of rules, or of other code, on the rates. All its params have the same."""
        return self.params[0].rate_scale

    @scale.setter
    def scale(self, scale: RateScale) -> None:
        for param in (*self.params, *self._frozen_alike(self)):
            param.rate_scale = scale
        self.note_scale()

    def note_scale(self) -> None:
        """That of all its params has changed, and is equal again."""
        self.key = (*self.key[:-1], self.scale)
