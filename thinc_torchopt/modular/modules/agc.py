"""Adaptive gradient clipping: Brock et al. 2021, https://arxiv.org/abs/2102.06171.

    out, for each unit: g min(1, clip max(|w|, eps) / |g|)

A unit is one index of the first dimension: an output, with all that leads to it. A tensor of one dimension is one unit.
The same as `clip_by = "adaptive"`.
"""

from typing import ClassVar, List, Optional

import torch
from torch import Tensor

from ...types import FloatOrSchedule
from ..blocks import Block
from ..module import Module, Ranges


class AGC(Module):
    """clip (float): Largest norm of a unit's gradient, as a part of the norm of its weights. eps (float): The least
    that this norm counts: or else weights of 0 could never change.
    """

    name = "agc"
    ranges: ClassVar[Ranges] = {"clip": "at_least_0", "eps": "at_least_0"}
    scope = "tensor"
    is_pure = True
    clips = True

    def __init__(
        self,
        clip: FloatOrSchedule = 0.01,
        eps: FloatOrSchedule = 1e-3,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"clip": clip, "eps": eps}, params=params, label=label)

    def run(self, block: Block) -> None:
        values = block.own()
        limits = unit_norms(block.weights).clamp_(min=block.options["eps"]).mul_(block.options["clip"])
        # A gradient of 0 with a limit above it gives an infinite factor, which becomes 1; with a limit of 0, NaN.
        values.mul_(limits.div_(unit_norms(values)).nan_to_num_(nan=1.0, posinf=1.0).clamp_(max=1.0))


def unit_norms(tensor: Tensor) -> Tensor:
    """The 2-norm of each unit, in a shape that goes with the tensor's."""
    return torch.linalg.vector_norm(tensor, dim=tuple(range(1, tensor.ndim)) or None, keepdim=True)
