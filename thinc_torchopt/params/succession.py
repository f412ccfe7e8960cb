"""What a param leaves to the one that takes its name: after `add_label`, `resize_output`, or when a torch module was
built anew.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Protocol

import torch

from ..types import OnGrowth
from .param import Param


class Keeper(Protocol):
    """Who keeps something for each param, which goes on when another param takes its name: torch's state, averages."""

    def release(self, param: Param) -> Any:
        """Forget a param, and give away what was kept for it. None: nothing."""

    def inherit(self, param: Param, released: Any, old: Released, on_growth: OnGrowth) -> None:
        """Let a param go on with what was released by the one that had its name before, and perhaps another shape.

        RAISES (StateError): It does not fit. The param has begun anew then.
        """


class Released(NamedTuple):
    """What a param leaves to the one that takes its name: after `add_label`, `resize_output`, or when a torch module
    was built anew.

    steps, joined_at: As of the `Param`. state, average (Any): What was kept of it, or None.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    steps: int
    joined_at: Optional[int]
    state: Any
    average: Any
