"""Clipping by the norm of each tensor: Pascanu et al. 2013, https://arxiv.org/abs/1211.5063.

    out: g min(1, max_norm / |g|)        |g|: 2-norm of one tensor

As thinc's `grad_clip`, or `clip_by = "param"`. thinc leaves a norm of exactly max_norm alone, and so does the formula.
"""

from typing import ClassVar, List, Optional

from ...types import FloatOrSchedule
from ..blocks import Block, norm_of
from ..module import Module, Ranges


class L2Clipping(Module):
    """max_norm (float): Largest norm of a tensor. 0.0: nothing is left."""

    name = "l2-clipping"
    ranges: ClassVar[Ranges] = {"max_norm": "at_least_0"}
    scope = "tensor"
    is_pure = True
    clips = True

    def __init__(
        self,
        max_norm: FloatOrSchedule = 1.0,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"max_norm": max_norm}, params=params, label=label)

    def run(self, block: Block) -> None:
        values, factor = block.factored()
        block.scale(clip_factor(norm_of(values) * abs(factor), block.options["max_norm"]))


def clip_factor(norm: float, max_norm: float) -> float:
    return max_norm / norm if norm > max_norm else 1.0
