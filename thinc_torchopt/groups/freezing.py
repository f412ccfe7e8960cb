"""Params that are frozen: for them torch computes no gradients, while a training step goes on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Optional

import torch

from ..params import Param, Pattern, matches_any
from ..schema import NotNegative, write
from .settings import ParamSettings


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

    def applied(self, param: Param, settings: ParamSettings) -> ParamSettings:
        """The settings of a param after all changes."""
        for change, patterns in zip(self._changes, self._patterns):
            if matches_any(patterns, param.names):
                until = math.inf if change.until is None else min(settings.frozen_until, change.until)
                settings = replace(settings, frozen_until=until)
        return settings

    def state_dict(self) -> list[dict[str, Any]]:
        return [write(change) for change in self._changes]


class FrozenGrads:
    """The torch params for which torch computes no gradients, because they are frozen: only while `stopping`."""

    def __init__(self) -> None:
        self._is_active = False
        self._stopped: dict[int, torch.nn.Parameter] = {}

    @contextmanager
    def stopping(self, params: Iterable[Param]) -> Iterator[None]:
        """Inside, none are computed for params that are frozen; afterwards `requires_grad` is as before.

        params (Iterable[Param]): Those that are frozen at first.
        """
        if self._is_active:
            yield
            return
        self._is_active = True
        try:
            self.stop(params)
            yield
        finally:
            self._resume_all()
            self._is_active = False

    @contextmanager
    def put_aside(self) -> Iterator[None]:
        """Inside, `requires_grad` is as before `stopping`; afterwards it is frozen again."""
        was_active, stopped = self._is_active, list(self._stopped.values())
        self._is_active = False
        self._resume_all()
        try:
            yield
        finally:
            self._is_active = was_active
            for source in stopped:
                self._stop(source)

    @property
    def ids(self) -> set[int]:
        """The ids of these params."""
        return set(self._stopped)

    def stop(self, params: Iterable[Param]) -> None:
        """Compute none for these from now on."""
        for param in params:
            if self._is_active and isinstance(param.source, torch.nn.Parameter) and param.source.requires_grad:
                self._stop(param.source)

    def stop_only(self, params: Iterable[Param]) -> None:
        """Compute none for these, but for all others."""
        self._resume_all()
        self.stop(params)

    def resume(self, param: Param) -> None:
        """Compute them again for one that is no longer frozen."""
        if (source := self._stopped.pop(id(param.source), None)) is not None:
            source.requires_grad_(True)

    def _stop(self, source: torch.nn.Parameter) -> None:
        source.requires_grad_(False)
        source.grad = None
        self._stopped[id(source)] = source

    def _resume_all(self) -> None:
        for source in self._stopped.values():
            source.requires_grad_(True)
        self._stopped.clear()
