"""Gradient centralization: Yong et al. 2020, https://arxiv.org/abs/2004.01461.

    out: g - mean(g), over all dimensions but the first

Params of one dimension, such as biases, are left alone. thinc's Maxout has biases of two: leave them out with
`params = ["*/W", "*/weight"]`.
"""

from typing import List, Optional

from ..blocks import Block
from ..module import Module


class Centralize(Module):
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
