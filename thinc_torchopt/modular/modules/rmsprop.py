"""RMSProp: Hinton 2012, https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf.

    s = beta s + (1 - beta) g^2, from s = 0        out: g / (sqrt(s) + eps)

The same as torch.optim.RMSprop; beta and eps are declearn's (torch: alpha = 0.99, eps = 1e-8).
"""

from typing import ClassVar, List, Optional

from ...types import FloatOrSchedule
from ..blocks import Block
from ..module import Module, Ranges
from .parts import add_square, root


class RMSProp(Module):
    """beta (float): How much of the average is kept. eps (float): Added to the root. round_reset (bool): `start_round`
    sets the average to zero.
    """

    name = "rmsprop"
    ranges: ClassVar[Ranges] = {"beta": "beta", "eps": "at_least_0"}
    tensors = ("square_avg",)

    def __init__(
        self,
        beta: FloatOrSchedule = 0.9,
        eps: FloatOrSchedule = 1e-7,
        round_reset: bool = False,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"beta": beta, "eps": eps}, {"round_reset": round_reset}, params=params, label=label)

    def run(self, block: Block) -> None:
        values, factor = block.factored()
        beta = block.options["beta"]
        square = add_square(block.state["square_avg"], values, factor, beta, 1.0 - beta)
        block.put(values, divisor=root(square, block.options["eps"], block), factor=factor)
