"""Lookahead. It works on the weights after the whole update, wherever it stands among the modules."""

from typing import Any, ClassVar, List, Optional

from torch import Tensor

from ...checks import Section
from ...types import FloatOrSchedule
from ..blocks import Block, opmath
from ..module import Module, Ranges


class Lookahead(Module):
    """Lookahead: Zhang et al. 2019, https://arxiv.org/abs/1907.08610. Every k updates, the weights go back to slow
    weights, which move towards them.

        slow = slow + alpha (w - slow), w = slow        from slow = the first weights

    k (int): Updates between two moves of the slow weights.
    alpha (float): How far the slow weights move, from 0 to 1.
    """

    name = "lookahead"
    ranges: ClassVar[Ranges] = {"alpha": "part"}
    counts_steps = True
    is_pure = True
    is_linear = True
    changes_weights = True

    def __init__(
        self,
        k: int = 5,
        alpha: FloatOrSchedule = 0.5,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"alpha": alpha}, {"k": k}, params=params, label=label)
        Section(self.where, allows_texts=False).whole("k", k, at_least=1)

    def first_state(self, weights: Tensor) -> dict[str, Any]:
        return {"step": 0, "slow": weights.detach().to(opmath(weights.dtype), copy=True)}

    def after_update(self, block: Block) -> None:
        if block.step % self.settings["k"] == 0:
            slow = block.state["slow"]
            slow.lerp_(block.weights, block.options["alpha"])
            block.weights.copy_(slow)
