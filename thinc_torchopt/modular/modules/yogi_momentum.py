"""Yogi's moving average, for the gradient itself: Zaheer et al. 2018,
https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization. The paper has it for squares; declearn
offers it as momentum.

    s = s - sign(s - g) (1 - beta) g, from s = 0        out: s
"""

from typing import ClassVar, List, Optional

from ...types import FloatOrSchedule
from ..blocks import Block
from ..module import Module, Ranges
from .parts import yogi_step


class YogiMomentum(Module):
    """beta (float): How slowly the average moves. round_reset (bool): `start_round` sets it to zero."""

    name = "yogi-momentum"
    ranges: ClassVar[Ranges] = {"beta": "beta"}
    tensors = ("exp_avg",)

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
        block.put(yogi_step(block.state["exp_avg"], block.read(), block.options["beta"], block))
