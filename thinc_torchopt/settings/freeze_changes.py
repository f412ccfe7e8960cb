"""Freezing and unfreezing during a training.

A change belongs to params: it stays with a param that grows, is copied or is renamed, whatever the settings say. A
param that is added later gets all changes whose patterns match it.
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
    """One change. params (list[str]): Patterns over names. until (float): The first step that trains them, unless they
    were trained before. Infinite: frozen from now on.
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
    """All changes, in order."""

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
