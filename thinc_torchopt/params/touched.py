"""The cells of a param that an update touches, where the others are to wait: `sparse = "lazy"`.

A bag of words has a column of weights for each word that there may be, and a batch has few of them: most cells of the
gradient are 0. `Touched` holds the others as a small tensor with a gradient. Norms, the guard, clipping and the
optimizer's step work on that, and what came out is put back.
"""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

# Up to so many cells one look at each costs least.
_FEW = 1 << 14
# So many cells that lie in a row are looked at together.
_BLOCK = 64
# Rows of a matrix that are so many times as long as there are rows are laid on top of each other.
_WIDE = 32
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Touched:
    """The cells of a param whose gradient is not 0. NaN is not 0.

    param (Tensor): With a gradient. Both are contiguous.
    index (Tensor): Where the cells are in the param as a vector, in ascending order.

    Public: `tensor` (their values, with their gradient: copies), `grad` (that of the whole param).
    """

    def __init__(self, param: Tensor, index: Tensor):
        assert param.grad is not None
        self.index = index
        self.grad = param.grad
        self.tensor = self.of(param)
        self.tensor.grad = self.of(param.grad)

    def of(self, tensor: Tensor) -> Tensor:
        """These cells of a tensor of the param's shape: a copy. Shape: (cells,)."""
        return tensor.detach().view(-1).index_select(0, self.index)

    def put(self, values: Tensor, tensor: Tensor) -> None:
        """Write values into these cells of a tensor of the param's shape. values (Tensor): Shape: (cells,)."""
        tensor.detach().view(-1).index_copy_(0, self.index, values)

    def clear(self) -> None:
        """Set the param's gradient to 0."""
        self.grad.view(-1).index_fill_(0, self.index, 0.0)


def cells_not_zero(tensor: Tensor, row_size: int = 1) -> Tensor:
    """Where a tensor is not 0: `tensor.view(-1).nonzero().view(-1)`, in less time if that is in few places.

    One pass over the memory tells where cells may be, and a look at these which there are.

    tensor (Tensor): Floats, contiguous.
    row_size (int): How many cells lie from one to the next in the same column.
    RETURNS (Tensor): Indices in ascending order. Shape: (cells,).
    """
    flat = tensor.detach().view(-1)
    n = flat.numel()
    if flat.device.type != "cpu" or n <= _FEW:
        return flat.nonzero().view(-1)
    if 1 < n // row_size <= row_size // _WIDE:
        # A word that is in the batch has a gradient in all rows of a bag of words. In numpy, which finds places in half
        # of the time.
        bits = flat.view(_BITS[flat.dtype.itemsize]).numpy().reshape(-1, row_size)
        columns = numpy.flatnonzero(numpy.bitwise_or.reduce(bits, axis=0) != 0)
        index = torch.from_numpy((numpy.arange(0, n, row_size)[:, None] + columns).reshape(-1))
    else:
        # The rows of a table of embeddings are as good blocks as any.
        size = row_size if _BLOCK <= row_size <= n // _BLOCK else _BLOCK
        n_blocks = n // size
        blocks = flat[: n_blocks * size].view(n_blocks, size)
        found = (blocks.amax(1) != 0).logical_or_(blocks.amin(1) != 0).nonzero()
        index = (found * size + torch.arange(size)).view(-1)
        index = torch.cat([index, torch.arange(n_blocks * size, n)])
    values = flat.index_select(0, index)
    return index if values.count_nonzero() == len(index) else index[values != 0]
