"""Momentum: Polyak 1964, https://doi.org/10.1016/0041-5553(64)90137-5; Nesterov's form as in Sutskever et al. 2013,
https://proceedings.mlr.press/v28/sutskever13.html.

    v = beta v + g        out: v, or with nesterov: beta v + g

The same as momentum in torch.optim.SGD.
"""

from typing import ClassVar, List, Optional

from ...types import FloatOrSchedule
from ..blocks import Block
from ..module import Module, Ranges


class Momentum(Module):
    """beta (float): How much of the sum is kept. nesterov (bool): Nesterov's form. round_reset (bool): `start_round`
    sets the sum to zero.
    """

    name = "momentum"
    ranges: ClassVar[Ranges] = {"beta": "beta", "nesterov": "flag"}
    tensors = ("momentum_buffer",)
    is_linear = True

    def __init__(
        self,
        beta: FloatOrSchedule = 0.9,
        nesterov: bool = False,
        round_reset: bool = False,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"beta": beta, "nesterov": nesterov}, {"round_reset": round_reset}, params=params, label=label)

    def run(self, block: Block) -> None:
        values, factor = block.factored()
        velocity, beta = block.state["momentum_buffer"], block.options["beta"]
        velocity.mul_(beta).add_(values, alpha=factor)
        if block.options["nesterov"]:
            block.own().add_(velocity, alpha=beta)
        else:
            block.put(velocity)
