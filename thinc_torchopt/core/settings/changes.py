"""Changes that rules made during a training: params that they froze or unfroze, and learning rates that they changed.

A change belongs to params: it stays with a param that is frozen, grows, is copied or is renamed, whatever the settings
say. A freeze change names params; a rate change names groups or blocks, and gives each of their params a factor, or a
rate of its own. A param that is added later gets all changes whose patterns match it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Optional

from ..params import Param, Pattern, matches_any
from ..schema import FirstStep, NotNegative


@dataclass
class FreezeChange:
    """Freeze or unfreeze params.

    params (list[str]): Patterns over names.
    until (float): The first step that trains them, unless they were trained before. Infinite: frozen from now on.
    """

    params: list[str]
    until: FirstStep

    def __post_init__(self) -> None:
        self._patterns = [Pattern(text, "the params to freeze") for text in self.params]

    @property
    def freezes(self) -> bool:
        return math.isinf(self.until)

    def matches(self, names: Collection[str]) -> bool:
        """Whether it applies to a param with these names."""
        return matches_any(self._patterns, names)

    def apply_to(self, param: Param) -> None:
        """Apply it to a param that has its settings."""
        param.frozen_until = self.until if self.freezes else min(param.settings.frozen_until, self.until)
        param.settings = replace(param.settings, frozen_until=param.frozen_until)


def with_freeze_change(changes: Sequence[FreezeChange], change: FreezeChange) -> list[FreezeChange]:
    """Add a change. It makes earlier ones of the same patterns void."""
    return [*(before for before in changes if before.params != change.params), change]


@dataclass(frozen=True)
class RateChange:
    """Change learning rates.

    groups (tuple[str, ...]): Names of blocks or groups, or patterns over them.
    factor (float): Multiplies the rate.
    min_rate (float): A factor below 1 does not lower the rate below this.
    rate (float | None): Replaces the rate from now on.
    max_rate (float | None): A factor above 1 does not raise the rate above this. None: no limit.
    """

    groups: tuple[str, ...]
    factor: NotNegative = 1.0
    min_rate: NotNegative = 0.0
    rate: Optional[NotNegative] = None
    max_rate: Optional[NotNegative] = None

    @property
    def has_limit(self) -> bool:
        """Whether it is more than a factor."""
        return self.rate is not None or self.max_rate is not None or bool(self.min_rate)

    def matches(self, names: Collection[str]) -> bool:
        """Whether it applies to params with one of these names of blocks and groups."""
        return any(fnmatchcase(name, text) for name in names for text in self.groups)

    def apply_to(self, params: Iterable[Param], rate: float) -> None:
        """Apply it to params with equal settings. rate (float): Their rate at the next step without it."""
        factor = self.factor
        if factor < 1.0:
            lowest = self.min_rate / rate if rate else 0.0
            factor = max(factor, min(lowest, 1.0))
        elif self.max_rate is not None and rate:
            factor = min(factor, max(self.max_rate / rate, 1.0))
        for param in params:
            scale = param.rate_scale
            param.rate_scale = scale.times(factor) if self.rate is None else replace(scale, held=self.rate)


def with_rate_change(changes: Sequence[RateChange], change: RateChange) -> list[RateChange]:
    """Add a change. Equivalent ones are merged, so the list stays short however often rules add some."""
    if change.rate is not None:
        changes = [before for before in changes if before.groups != change.groups]
    merged: list[RateChange] = []
    for each in (*changes, change):
        place = None if each.has_limit else _place_for(each.groups, merged)
        if place is None:
            merged.append(each)
        else:
            merged[place] = replace(merged[place], factor=merged[place].factor * each.factor)
    return merged


def _place_for(groups: Sequence[str], changes: Sequence[RateChange]) -> int | None:
    """The index of a factor for the same groups that is followed by factors only, whose order does not matter."""
    for place, before in reversed(list(enumerate(changes))):
        if before.has_limit:
            return None
        if before.groups == groups:
            return place
    return None
