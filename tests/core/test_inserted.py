"""Cells that a param got in its middle. The oracle: `numpy.insert`."""

import numpy
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.core.inserted import Insertion, order_after
from thinc_torchopt.core.params.param import Half, Param


@given(
    size=st.integers(1, 5),
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=4),
    first=st.integers(0, 3),
    axis=st.integers(0, 1),
    more=st.integers(0, 2),
)
def test_inserted_cells_are_found_again(size, steps, first, axis, more):
    """From each of the sizes that the param had, with rows that came at the end of its other dimension."""
    insertions, tensors = [], [numpy.arange(float(size)) + 1]
    for at, number in steps:
        old = tensors[-1]
        at = min(at, len(old))
        insertions += [Insertion("b", axis, at, number, len(old)), Insertion("W", axis, at, number, len(old))]
        tensors.append(numpy.insert(old, [at] * number, 0.0))
    first = min(first, len(steps) - 1)
    old_shape, new_shape = [2, 2], [2 + more, 2 + more]
    old_shape[axis], new_shape[axis] = len(tensors[first]), len(tensors[-1])
    order = order_after(insertions, "W", old_shape, new_shape)
    new = torch.from_numpy(tensors[-1]).unsqueeze(1 - axis).expand(*new_shape)
    found = order.old_first(new).select(1 - axis, 0).numpy()
    assert numpy.array_equal(found[: len(tensors[first])], tensors[first])
    assert torch.equal(order.in_place(order.old_first(new)), new)


def test_inserted_nothing_leads_from_one_shape_to_the_other():
    insertions = [Insertion("W", 0, 2, 1, 3)]
    assert order_after(insertions, "W", [3, 5], [4, 5]).cells == (0, 1, 3, 2)
    for param, old, new in [("b", [3], [4]), ("W", [2, 5], [4, 5]), ("W", [3, 5], [5, 5]), ("W", [4, 5], [4, 5])]:
        assert order_after(insertions, param, old, new) is None
    assert order_after([*insertions, Insertion("W", 0, 0, 1, 9)], "W", [3, 5], [5, 5]) is None
    assert order_after([Insertion("W", 1, 2, 1, 3)], "W", [3], [4]) is None


def test_inserted_cells_of_a_master():
    """Old cells keep the bits that half precision has not; new ones are the model's."""
    model = torch.tensor([1.0, 2.0, 9.0, 3.0]).half()
    param = Param("x", (1, "W"), model, model.float())
    param.half, param.insertions = Half.of(model), (Insertion("W", 0, 2, 1, 3),)
    param.take_master(torch.tensor([1.0001, 2.0001, 3.0001]))
    assert torch.equal(param.tensor, torch.tensor([1.0001, 2.0001, 9.0, 3.0001]))
