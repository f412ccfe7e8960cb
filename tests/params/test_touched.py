"""Which cells of a gradient are not 0: against torch's `nonzero`, which looks at each."""

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinc_torchopt.params.touched import Touched, cells_not_zero

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# A bag of words, embeddings, a matrix, one row, few cells, no whole number of blocks.
SHAPES = [(3, 9_001), (2_000, 96), (300, 301), (1, 30_000), (7, 5), (20_011,), (5_003, 4)]


@settings(max_examples=30, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(DTYPES),
    n=st.integers(0, 200),
    by=st.sampled_from(["cells", "rows", "columns", "all"]),
    seed=st.integers(0, 1_000),
)
def test_touched_cells_are_those_that_are_not_zero(shape, dtype, n, by, seed):
    rng = numpy.random.default_rng(seed)
    grad = torch.zeros(shape, dtype=dtype)
    # Smallest numbers, zeros with a sign, and what is not finite.
    values = torch.tensor([1.0, -1.0, torch.finfo(dtype).tiny, -torch.finfo(dtype).tiny, -0.0, torch.nan, -torch.inf])
    chosen = rng.integers(0, {"rows": shape[0], "columns": shape[-1]}.get(by, grad.numel()), n)
    where = grad.view(-1) if by == "cells" else grad if by == "rows" else grad.transpose(0, -1)
    if by == "all":
        grad.fill_(2.0)
    else:
        where[chosen] = values[rng.integers(0, len(values))].to(dtype)
    for row_size in (1, shape[-1], grad.numel()):
        assert torch.equal(cells_not_zero(grad, row_size), grad.view(-1).nonzero().view(-1))


def test_touched_cells_are_taken_and_put_back():
    param, other = torch.arange(12.0).view(3, 4), torch.zeros(3, 4)
    param.grad = torch.zeros(3, 4)
    param.grad[1, 2], param.grad[2, 0] = torch.nan, 3.0
    touched = Touched(param, cells_not_zero(param.grad))
    assert touched.tensor.tolist() == [6.0, 8.0]
    assert touched.tensor.grad[1] == 3.0
    touched.put(touched.tensor * 10, other)
    assert other.view(-1).nonzero().view(-1).tolist() == [6, 8]
    assert touched.of(other).tolist() == [60.0, 80.0]
    touched.clear()
    assert not param.grad.any()


@pytest.mark.parametrize("shape", SHAPES)
def test_touched_cells_may_be_none(shape):
    assert cells_not_zero(torch.zeros(shape), shape[-1]).shape == (0,)
