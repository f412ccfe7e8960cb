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
from typing import Any, Optional

from ..params import Param, Pattern, matches_any
from ..schema import FirstStep, NotNegative, write


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


class FreezeChanges:
    """All changes that freeze or unfreeze, in order."""

    def __init__(self, changes: Iterable[FreezeChange] = ()):
        self._changes = list(changes)

    def add(self, change: FreezeChange) -> None:
        """Add a change. Earlier ones that it makes void are dropped, so the list stays short however often rules add
        some.
        """
        known = [before for before in self._changes if not change.freezes or before.params != change.params]
        self._changes = []
        unfrozen: list[list[str]] = []  # since the last change that freezes
        for each in (*known, change):
            if each.freezes:
                unfrozen = []
            elif each.params in unfrozen:
                continue
            else:
                unfrozen.append(each.params)
            self._changes.append(each)

    def matching(self, names: Collection[str]) -> Iterable[FreezeChange]:
        """The changes for a param with these names."""
        return [change for change in self._changes if change.matches(names)]

    def state_dict(self) -> list[dict[str, Any]]:
        return [write(change) for change in self._changes]


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


class RateChanges:
    """All changes of rates, in order."""

    def __init__(self, changes: Iterable[RateChange] = ()):
        self._changes = list(changes)

    def add(self, change: RateChange) -> None:
        """Add a change. Equivalent ones are merged, so the list stays short however often rules add some."""
        if change.rate is not None:
            self._changes = [before for before in self._changes if before.groups != change.groups]
        changes, self._changes = [*self._changes, change], []
        for each in changes:
            place = None if each.has_limit else self._place_for(each.groups)
            if place is None:
                self._changes.append(each)
            else:
                before = self._changes[place]
                self._changes[place] = replace(before, factor=before.factor * each.factor)

    def _place_for(self, groups: Sequence[str]) -> int | None:
        """The index of a factor for the same groups that is followed by factors only, whose order does not matter."""
        for place, before in reversed(list(enumerate(self._changes))):
            if before.has_limit:
                return None
            if before.groups == groups:
                return place
        return None

    def matching(self, names: Collection[str]) -> Iterable[RateChange]:
        """The changes for params with one of these names."""
        return [change for change in self._changes if change.matches(names)]

    def state_dict(self) -> list[dict[str, Any]]:
        return [write(change) for change in self._changes]
