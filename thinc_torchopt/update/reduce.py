"""Gradients of several processes, made one before anything is decided about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..params import Param


class SplitState(Protocol):
    """Lets each process update some of the params, and keep their state."""

    def own(self, params: Sequence[Param]) -> list[Param]:
        """Those that this process updates, of all that are updated."""

    def exchange(self, params: Sequence[Param]) -> None:
        """They are updated: take the values of others."""


class Reduce(Protocol):
    """Makes each gradient that of all processes, in place. Data parallel stands behind this: see distributed/reduce.py.

    lr_scale (float): Multiplies all learning rates.
    shards (SplitState | None): None: each process updates all params.
    """

    lr_scale: float

    @property
    def shards(self) -> SplitState | None: ...

    def __call__(
        self,
        params: Sequence[Param],
        known: Sequence[Param],
        spoiled_by: Exception | None,
        metrics: Mapping[str, Any] | None,
    ) -> tuple[list[Param], Exception | None, Mapping[str, Any] | None]:
        """Every process comes here at each joint update, also without a gradient.

        params (Sequence[Param]): Those that have a gradient here. known (Sequence[Param]): All.
        spoiled_by (Exception | None): Why not all gradients could be computed here.
        metrics (Mapping | None): Of this step, for learning rates.
        RETURNS (tuple): The same of all processes: params with a gradient in any, the first reason, and metrics.
        """
