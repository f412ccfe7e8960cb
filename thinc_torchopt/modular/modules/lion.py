"""Lion: Chen et al. 2023, https://arxiv.org/abs/2302.06675.

out: sign(b1 m + (1 - b1) g)        m = b2 m + (1 - b2) g, from m = 0
"""

from typing import ClassVar, List, Optional

import torch

from ...types import FloatOrSchedule
from ..blocks import Block
from ..module import Module, Ranges
from .parts import average


class Lion(Module):
    """beta_1 (float): Weight of the average in the update. beta_2 (float): How much of the average is kept. round_reset
    (bool): `start_round` sets it to zero.
    """

    name = "lion"
    ranges: ClassVar[Ranges] = {"beta_1": "beta", "beta_2": "beta"}
    tensors = ("exp_avg",)

    def __init__(
        self,
        beta_1: FloatOrSchedule = 0.9,
        beta_2: FloatOrSchedule = 0.99,
        round_reset: bool = False,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        options = {"beta_1": beta_1, "beta_2": beta_2}
        super().__init__(options, {"round_reset": round_reset}, params=params, label=label)

    def run(self, block: Block) -> None:
        values, factor = block.factored()
        mean, beta_1 = block.state["exp_avg"], block.options["beta_1"]
        update = torch.mul(mean, beta_1, out=block.spare()).add_(values, alpha=(1.0 - beta_1) * factor).sign_()
        average(mean, values, factor, block.options["beta_2"])
        block.put(update)
