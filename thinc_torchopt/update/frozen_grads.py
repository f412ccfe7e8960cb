"""Params that are frozen: for them torch computes no gradients, while a training step goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from ..params import Param


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
