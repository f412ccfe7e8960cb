"""Gradients that were noted since the last update."""

from __future__ import annotations

from thinc.api import Shim

from ..params import Param
from ..types import Key


class NotedGrads:
    """The params that have a gradient for the next update, by key, and the shims that take part in it."""

    def __init__(self) -> None:
        self.params: dict[Key, Param] = {}
        self.shims: list[Shim] = []

    def take(self) -> tuple[list[Param], list[Shim]]:
        """Give away what was noted: the params whose gradient is still there, and the shims."""
        params, shims = [param for param in self.params.values() if param.tensor.grad is not None], self.shims
        self.forget()
        return params, shims

    def forget(self) -> None:
        """Drop what was noted."""
        self.params.clear()
        self.shims = []
