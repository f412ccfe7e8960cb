"""Formulas that several modules share."""

import torch
from torch import Tensor

from ..blocks import Block


def average(mean: Tensor, values: Tensor, factor: float, beta: float) -> Tensor:
    """Move an average on, in place, by `factor * values`."""
    return (
        mean.lerp_(values, 1.0 - beta) if factor == 1.0 else mean.mul_(beta).add_(values, alpha=(1.0 - beta) * factor)
    )


def add_square(mean: Tensor, values: Tensor, factor: float, beta: float, weight: float) -> Tensor:
    """`mean = beta mean + weight (factor values)^2`, in place."""
    if beta != 1.0:
        mean.mul_(beta)
    return mean.addcmul_(values, values, value=weight * factor * factor)


def yogi_step(mean: Tensor, values: Tensor, beta: float, block: Block) -> Tensor:
    """Yogi's step of a mean towards values, in place: by a part of the values, not of the distance.

    SOURCE: Zaheer et al. 2018, Adaptive Methods for Nonconvex Optimization, NeurIPS.
    """
    sign = block.spare()
    torch.sub(mean, values, out=sign).sign_()
    return mean.addcmul_(sign, values, value=beta - 1.0)


def root(square: Tensor, eps: float, block: Block) -> Tensor:
    """`sqrt(square) + eps`"""
    return torch.sqrt(square, out=block.spare()).add_(eps)
