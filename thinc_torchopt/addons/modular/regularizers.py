"""Regularizers: they add to a gradient, by the weights. ridge has a 2 in its formula, as in declearn."""

from collections.abc import Mapping, MutableMapping
from typing import Any, ClassVar, List, Optional

import torch
from torch import Tensor

from ...core.types import FloatOrSchedule
from .module import Block, Ranges, Regularizer


class _Alpha(Regularizer):
    """A regularizer with a strength `alpha`."""

    ranges: ClassVar[Ranges] = {"alpha": "at_least_0"}

    def __init__(
        self,
        alpha: FloatOrSchedule = 0.01,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"alpha": alpha}, params=params, label=label)


class Ridge(_Alpha):
    """L2 regularization: g + 2 alpha w.

    alpha (float): Strength. Note the factor of 2, as in declearn.
    """

    name = "ridge"

    def run(self, block: Block) -> None:
        block.own().add_(block.weights, alpha=2.0 * block.options["alpha"])


class Lasso(_Alpha):
    """L1 regularization: g + alpha sign(w), where sign(0) is 0.

    alpha (float): Strength.
    """

    name = "lasso"

    def run(self, block: Block) -> None:
        block.own().add_(torch.sign(block.weights), alpha=block.options["alpha"])


class L2SP(_Alpha):
    """Pull towards the weights before the first step, w0: g + alpha (w - w0), by Li et al. 2018,
    https://arxiv.org/abs/1802.01483. For the paper's second term, for new layers, use `ridge` with `params`. The first
    step of a param that was frozen is that after it is unfrozen.

    alpha (float): Strength.
    """

    name = "l2-sp"

    def first_state(self, weights: Tensor) -> dict[str, Any]:
        return {"reference": weights.detach().clone()}

    def run(self, block: Block) -> None:
        block.own().add_(block.weights - block.state["reference"], alpha=block.options["alpha"])


class FedProx(L2SP):
    """Pull towards the weights before the first step of a federated round, w0: g + alpha (w - w0), by Li et al. 2018,
    https://arxiv.org/abs/1812.06127.

    alpha (float): Strength.
    """

    name = "fedprox"

    def first_state(self, weights: Tensor) -> dict[str, Any]:
        return {"new_round": False, **super().first_state(weights)}

    def prepare(self, state: MutableMapping[str, Any], weights: Tensor, options: Mapping[str, Any]) -> None:
        if state["new_round"]:
            state.update(reference=state["reference"].copy_(weights), new_round=False)

    def start_round(self, state: MutableMapping[str, Any]) -> None:
        state["new_round"] = True
