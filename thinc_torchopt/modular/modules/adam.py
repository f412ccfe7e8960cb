"""Adam: Kingma and Ba 2014, https://arxiv.org/abs/1412.6980; AMSGrad: Reddi et al. 2018,
https://openreview.net/forum?id=ryQu7f-RZ.

    m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2        from m = v = 0
    out: (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

The same as torch.optim.Adam, but for declearn's defaults (beta_2 = 0.99, eps = 1e-7), and for AMSGrad: the maximum is
that of v *after* its bias correction, as in declearn; torch takes it before. The maximum outlives `round_reset`, as in
declearn.
"""

import math
from collections.abc import Mapping, MutableMapping
from typing import Any, ClassVar, List, Optional

import torch
from torch import Tensor

from ... import kernels
from ...types import FloatOrSchedule
from ..blocks import Block, opmath
from ..module import Module, Ranges
from .parts import add_square, average, root


class Adam(Module):
    """beta_1, beta_2 (float): How much of the two averages is kept. amsgrad (bool): Divide by the largest second moment
    so far. eps (float): Added to the root. round_reset (bool): `start_round` begins the averages anew.
    """

    name = "adam"
    ranges: ClassVar[Ranges] = {"beta_1": "beta", "beta_2": "beta", "amsgrad": "flag", "eps": "at_least_0"}
    tensors = ("exp_avg", "exp_avg_sq")
    optional_tensors = ("max_exp_avg_sq",)
    counts_steps = True

    def __init__(
        self,
        beta_1: FloatOrSchedule = 0.9,
        beta_2: FloatOrSchedule = 0.99,
        amsgrad: bool = False,
        eps: FloatOrSchedule = 1e-7,
        round_reset: bool = False,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        options = {"beta_1": beta_1, "beta_2": beta_2, "amsgrad": amsgrad, "eps": eps}
        super().__init__(options, {"round_reset": round_reset}, params=params, label=label)

    def prepare(self, state: MutableMapping[str, Any], weights: Tensor, options: Mapping[str, Any]) -> None:
        super().prepare(state, weights, options)
        if options["amsgrad"] and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros_like(weights, dtype=opmath(weights.dtype))

    def run(self, block: Block) -> None:
        options, state, step = block.options, block.state, block.step
        mean, square = self.move(block)
        # The bias corrections are numbers: they need not go through the tensors.
        first, second = 1.0 - options["beta_1"] ** step, 1.0 - options["beta_2"] ** step
        if options["amsgrad"]:
            corrected = torch.div(square, second, out=block.spare())
            square, second = torch.maximum(state["max_exp_avg_sq"], corrected, out=state["max_exp_avg_sq"]), 1.0
        divisor = root(square, options["eps"] * second**0.5, block)
        block.put(mean, divisor=divisor, factor=second**0.5 / first)

    def run_last(self, block: Block, rate: float, decay: float) -> bool:
        options, mean, square = block.options, block.state["exp_avg"], block.state["exp_avg_sq"]
        fits = all(kernels.ADAM.takes(tensor) and tensor.is_contiguous() for tensor in (block.weights, mean, square))
        if type(self) is not Adam or options["amsgrad"] or not rate or not fits or not math.isfinite(decay / rate):
            return False
        kernels.adam_(
            [block.weights],
            [block.read().contiguous()],
            [[mean], [square]],
            [torch.full((), float(block.step), device=block.weights.device)],
            decoupled=True,
            lr=rate,
            beta1=options["beta_1"],
            beta2=options["beta_2"],
            weight_decay=decay / rate,  # torch multiplies it by the rate
            eps=options["eps"],
            amsgrad=False,
            maximize=False,
        )
        return True

    def move(self, block: Block) -> tuple[Tensor, Tensor]:
        """Move the two averages on."""
        values, factor = block.factored()
        beta_1, beta_2 = block.options["beta_1"], block.options["beta_2"]
        return (
            average(block.state["exp_avg"], values, factor, beta_1),
            add_square(block.state["exp_avg_sq"], values, factor, beta_2, 1.0 - beta_2),
        )
