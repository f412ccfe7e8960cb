"""What was frozen and unfrozen in the course of a training.

A change is made to params. So it stays with a param that grows, is copied, or gets another name, whatever the settings
say. A param that comes later takes part in all changes whose patterns match it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..params import Param, Pattern, matches_any
from ..schema import FirstStep, write


@dataclass
class FreezeChange:
    """One change. params (list[str]): Patterns over names. until (float): The first step to train them, unless they are
    trained before that. Infinite: they are frozen from now on.
    """

    params: list[str]
    until: FirstStep

    def __post_init__(self) -> None:
        self._patterns = [Pattern(text, "what is to be frozen") for text in self.params]

    @property
    def freezes(self) -> bool:
        return math.isinf(self.until)

    def matches(self, names: Collection[str]) -> bool:
        """Whether it is for a param with these names."""
        return matches_any(self._patterns, names)

    def apply_to(self, param: Param) -> None:
        """Change a param, which has its settings."""
        param.frozen_until = self.until if self.freezes else min(param.settings.frozen_until, self.until)
        param.settings = replace(param.settings, frozen_until=param.frozen_until)


class FreezeChanges:
    """All changes, in their order."""

    def __init__(self, changes: Iterable[FreezeChange] = ()):
        self._changes = list(changes)

    def add(self, change: FreezeChange) -> None:
        """Note a change. Those that come to nothing are left out, so that there are few however often rules make
        them.
        """
        known = [before for before in self._changes if not change.freezes or before.params != change.params]
        self._changes = []
        unfrozen: list[list[str]] = []  # since the last one that freezes
        for each in (*known, change):
            if each.freezes:
                unfrozen = []
            elif each.params in unfrozen:
                continue
            else:
                unfrozen.append(each.params)
            self._changes.append(each)

    def matching(self, names: Collection[str]) -> Iterable[FreezeChange]:
        """Those for a param with these names."""
        return [change for change in self._changes if change.matches(names)]

    def state_dict(self) -> list[dict[str, Any]]:
        return [write(change) for change in self._changes]
