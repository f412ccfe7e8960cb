"""During a training step, no gradients of frozen params."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from ..params import Param


class FrozenGrads:
    """Frozen torch params: torch computes no gradients of them inside `stopping`."""

    def __init__(self) -> None:
        self._is_active = False
        self._stopped: dict[int, torch.nn.Parameter] = {}

    @contextmanager
    def stopping(self, params: Iterable[Param]) -> Iterator[None]:
        """Inside, frozen params have no gradients; afterwards `requires_grad` is as before.

        params (Iterable[Param]): The params that are frozen at first.
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
        """Inside, `requires_grad` is as before `stopping`; afterwards params are frozen again."""
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
        """Stop gradients of more params."""
        for param in params:
            if self._is_active and isinstance(param.source, torch.nn.Parameter) and param.source.requires_grad:
                self._stop(param.source)

    def stop_only(self, params: Iterable[Param]) -> None:
        """Stop gradients of these params, and of no others."""
        self._resume_all()
        self.stop(params)

    def _stop(self, source: torch.nn.Parameter) -> None:
        source.requires_grad_(False)
        source.grad = None
        self._stopped[id(source)] = source

    def _resume_all(self) -> None:
        for source in self._stopped.values():
            source.requires_grad_(True)
        self._stopped.clear()
