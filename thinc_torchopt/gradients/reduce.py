"""Gradients of several processes, made one before anything is decided about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..params import Param


class Reduce(Protocol):
    """Makes each gradient the mean over all processes, in place. Data parallel stands behind this."""

    def __call__(self, params: Sequence[Param]) -> None:
        """params (Sequence[Param]): The params of an update, each with a gradient. The same ones in every process."""
