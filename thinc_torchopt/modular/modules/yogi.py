"""Yogi: Zaheer et al. 2018, https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization.

Adam, with another second moment:

    v = v - sign(v - g^2) (1 - b2) g^2, from v = 0

The paper begins with v = g^2 of a first batch, and has no bias correction; here both are as in declearn. The defaults
are declearn's (paper: b2 = 0.999, eps = 1e-3).
"""

import torch
from torch import Tensor

from ..blocks import Block
from .adam import Adam
from .parts import average, yogi_step


class Yogi(Adam):
    """beta_1, beta_2 (float): How slowly the two averages move. amsgrad (bool): Divide by the largest second moment so
    far. eps (float): Added to the root. round_reset (bool): `start_round` begins the averages anew.
    """

    name = "yogi"

    def move(self, block: Block) -> tuple[Tensor, Tensor]:
        values = block.read()
        square = torch.mul(values, values, out=block.spare())
        return (
            average(block.state["exp_avg"], values, 1.0, block.options["beta_1"]),
            yogi_step(block.state["exp_avg_sq"], square, block.options["beta_2"], block),
        )
