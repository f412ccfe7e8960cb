"""What was frozen and unfrozen in the course of a training, beside what the settings say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ..params import Param, Pattern, matches_any
from ..schema import NotNegative, write
from .param_settings import ParamSettings


@dataclass
class FreezeChange:
    """One change. params (list[str]): Patterns over names. until (float | None): The first step to train them. None:
    they are frozen from now on.
    """

    params: list[str]
    until: Optional[NotNegative]


class FreezeChanges:
    """What was frozen and unfrozen in the course of a training, in this order, beside what the settings say."""

    def __init__(self, changes: Iterable[FreezeChange] = ()):
        self._changes = list(changes)
        self._patterns = [self._patterns_of(change) for change in self._changes]

    @staticmethod
    def _patterns_of(change: FreezeChange) -> list[Pattern]:
        return [Pattern(text, "the saved state") for text in change.params]

    def add(self, patterns: Sequence[Pattern], until: int | None) -> None:
        """patterns, until: As in `FreezeChange`; the step is the one that comes."""
        self._changes.append(FreezeChange([pattern.text for pattern in patterns], until))
        self._patterns.append(list(patterns))

    def forget_last(self) -> None:
        """Undo the last `add`."""
        self._changes.pop()
        self._patterns.pop()

    def applied(self, param: Param, settings: ParamSettings) -> ParamSettings:
        """The settings of a param after all changes."""
        for change, patterns in zip(self._changes, self._patterns):
            if matches_any(patterns, param.names):
                until = math.inf if change.until is None else min(settings.frozen_until, change.until)
                settings = replace(settings, frozen_until=until)
        return settings

    def state_dict(self) -> list[dict[str, Any]]:
        return [write(change) for change in self._changes]
