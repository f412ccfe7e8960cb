"""Combine the gradients of several processes, before the guard and clipping see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..params import Param


class SplitState(Protocol):
    """Splits the updates of params, and their state, between processes."""

    def own(self, params: Sequence[Param]) -> list[Param]:
        """The params that this process updates, among those to update."""

    def exchange(self, params: Sequence[Param]) -> None:
        """Get the values of params that other processes have updated."""


class Reduce(Protocol):
    """Combines each gradient over all processes, in place. distributed/reduce.py implements it for data parallel
    training.

    lr_scale (float): Multiplies all learning rates.
    shards (SplitState | None): None: each process updates all params.
    """

    lr_scale: float

    @property
    def shards(self) -> SplitState | None: ...

    def __call__(
        self, params: Sequence[Param], known: Sequence[Param], spoiled_by: Exception | None
    ) -> tuple[list[Param], Exception | None]:
        """Called by every process at each joint update, even without a gradient.

        params (Sequence[Param]): The params that have a gradient here. known (Sequence[Param]): All params.
        spoiled_by (Exception | None): The error that prevented gradients here.
        RETURNS (tuple): Over all processes: params with a gradient in any, and the first error.
        """
