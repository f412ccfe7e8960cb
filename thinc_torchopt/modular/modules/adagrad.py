"""AdaGrad: Duchi et al. 2011, https://jmlr.org/papers/v12/duchi11a.html.

    s = s + g^2, from s = 0        out: g / (sqrt(s) + eps)

The same as torch.optim.Adagrad with lr_decay = 0; eps is declearn's.
"""

from typing import ClassVar, List, Optional

from ...types import FloatOrSchedule
from ..blocks import Block
from ..module import Module, Ranges
from .parts import add_square, root


class AdaGrad(Module):
    """eps (float): Added to the root. round_reset (bool): `start_round` sets the sum to zero."""

    name = "adagrad"
    ranges: ClassVar[Ranges] = {"eps": "at_least_0"}
    tensors = ("sum",)

    def __init__(
        self,
        eps: FloatOrSchedule = 1e-7,
        round_reset: bool = False,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"eps": eps}, {"round_reset": round_reset}, params=params, label=label)

    def run(self, block: Block) -> None:
        values, factor = block.factored()
        square = add_square(block.state["sum"], values, factor, 1.0, 1.0)
        block.put(values, divisor=root(square, block.options["eps"], block), factor=factor)
