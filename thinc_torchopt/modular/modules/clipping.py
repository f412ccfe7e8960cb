"""Modules without state: clipping and centralization of gradients."""

import math
from typing import Any, ClassVar, List, Literal, Optional

import torch
from torch import Tensor

from ...types import FloatOrSchedule
from ..blocks import Block, norm_of, sum_of_squares
from ..module import Module, Ranges


class L2Clipping(Module):
    """Clipping by the norm of each tensor: Pascanu et al. 2013, https://arxiv.org/abs/1211.5063.

        out: g min(1, max_norm / |g|)        |g|: 2-norm of one tensor

    The same as thinc's `grad_clip`, and as `clip_by = "param"`.

    max_norm (float): Largest norm of a tensor. 0.0: all gradients become zero.
    """

    name = "l2-clipping"
    ranges: ClassVar[Ranges] = {"max_norm": "at_least_0"}
    scope: ClassVar[Literal["tensor", "all"]] = "tensor"
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


class L2GlobalClipping(L2Clipping):
    """Clipping by one norm over all gradients: Pascanu et al. 2013, https://arxiv.org/abs/1211.5063.

        out: g min(1, max_norm / |G|)        |G|: 2-norm of all tensors together

    As torch.nn.utils.clip_grad_norm_, which adds 1e-6 to the norm. The norm is over all tensors of this step that the
    module works on, also if param groups have different `max_norm`.

    max_norm (float): Largest norm of all gradients together. 0.0: all gradients become zero.
    """

    name = "l2-global-clipping"
    scope = "all"

    def begin_step(self, shared: Any) -> Any:
        return []

    def measure(self, block: Block) -> None:
        values, factor = block.factored()
        block.tool.extend((square, factor) for square in sum_of_squares(values))

    def after_measure(self, tool: list[tuple[Tensor, float]]) -> float:
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


class AGC(Module):
    """Adaptive gradient clipping: Brock et al. 2021, https://arxiv.org/abs/2102.06171.

        out, for each unit: g min(1, clip max(|w|, eps) / |g|)

    A unit is one index of the first dimension: an output with its weights. A tensor of one dimension is one unit. The
    same as `clip_by = "adaptive"`.

    clip (float): Largest norm of a unit's gradient, as a part of the norm of its weights.
    eps (float): Least value for the norm of the weights, so that weights of 0 can change.
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


class Centralize(Module):
    """Gradient centralization: Yong et al. 2020, https://arxiv.org/abs/2004.01461.

        out: g - mean(g), over all dimensions but the first

    Params of one dimension, such as biases, are not changed. thinc's Maxout has biases of two dimensions: exclude them
    with `params = ["*/W", "*/weight"]`.
    """

    name = "centralize"
    scope = "tensor"
    is_pure = True
    is_linear = True

    def __init__(self, *, params: Optional[List[str]] = None, label: Optional[str] = None):
        super().__init__(params=params, label=label)

    def run(self, block: Block) -> None:
        if block.weights.ndim > 1:
            values = block.own()
            values.sub_(values.mean(tuple(range(1, values.ndim)), keepdim=True))


def clip_factor(norm: float, max_norm: float) -> float:
    return max_norm / norm if norm > max_norm else 1.0


def unit_norms(tensor: Tensor) -> Tensor:
    """The 2-norm of each unit, in a shape that broadcasts to the tensor's."""
    return torch.linalg.vector_norm(tensor, dim=tuple(range(1, tensor.ndim)) or None, keepdim=True)
