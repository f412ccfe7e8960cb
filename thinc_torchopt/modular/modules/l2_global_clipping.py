"""Clipping by one norm over all gradients: Pascanu et al. 2013, https://arxiv.org/abs/1211.5063.

    out: g min(1, max_norm / |G|)        |G|: 2-norm of all tensors together

As torch.nn.utils.clip_grad_norm_, which adds 1e-6 to the norm. All tensors: those that this step updates, and on which
the module works. If param groups have different `max_norm`, the norm is the same for all of them.
"""

import math
from typing import Any, ClassVar, List, Optional

import torch
from torch import Tensor

from ...types import FloatOrSchedule
from ..blocks import Block, sum_of_squares
from ..module import Module, Ranges
from .l2_clipping import clip_factor


class L2GlobalClipping(Module):
    """max_norm (float): Largest norm of all gradients together. 0.0: nothing is left."""

    name = "l2-global-clipping"
    ranges: ClassVar[Ranges] = {"max_norm": "at_least_0"}
    scope = "all"
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

    def begin_step(self, shared: Any) -> Any:
        return []

    def measure(self, block: Block) -> None:
        values, factor = block.factored()
        block.tool.extend((square, factor) for square in sum_of_squares(values))

    def settle(self, tool: list[tuple[Tensor, float]]) -> float:
        squares: dict[torch.device, list[tuple[Tensor, float]]] = {}
        for square, factor in tool:
            squares.setdefault(square.device, []).append((square, factor))
        total = 0.0
        for found in squares.values():  # one transfer for each device
            values = torch.stack([square.double() for square, _ in found]).tolist()
            total += math.fsum(value * factor * factor for value, (_, factor) in zip(values, found))
        return math.sqrt(total)

    def run(self, block: Block) -> None:
        block.scale(clip_factor(block.tool, block.options["max_norm"]))
