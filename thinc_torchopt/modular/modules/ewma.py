"""An exponentially weighted moving average of gradients, without bias correction.

    s = beta s + (1 - beta) g, from s = 0        out: s

Not torch's `dampening`, whose first step is the full gradient.
"""

from typing import ClassVar, List, Optional

from ...types import FloatOrSchedule
from ..blocks import Block
from ..module import Module, Ranges
from .parts import average


class EWMA(Module):
    """beta (float): How much of the average is kept. round_reset (bool): `start_round` sets it to zero."""

    name = "ewma"
    ranges: ClassVar[Ranges] = {"beta": "beta"}
    tensors = ("exp_avg",)
    is_linear = True

    def __init__(
        self,
        beta: FloatOrSchedule = 0.9,
        round_reset: bool = False,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"beta": beta}, {"round_reset": round_reset}, params=params, label=label)

    def run(self, block: Block) -> None:
        values, factor = block.factored()
        block.put(average(block.state["exp_avg"], values, factor, block.options["beta"]))
