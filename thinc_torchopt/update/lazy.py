"""A torch optimizer's step on the touched cells of params, while the others wait: see params/touched.py.

torch steps on small tensors, and what it keeps of each param is cut to the same cells. Afterwards values and state are
put back where they are from. So an update of a cell is what torch's own class makes of it, and untouched cells keep
their value and their state: no moment and no decay moves, as in torch.optim.SparseAdam, which does this for gradients
that are sparse tensors. Counts of updates are the param's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ..algorithms import is_per_cell
from ..params import Param, Touched
from .group import Group


@contextmanager
def on_touched_cells(
    optimizer: torch.optim.Optimizer, chosen: Sequence[tuple[Group, Sequence[Param]]]
) -> Iterator[None]:
    """Inside, the optimizer has touched cells in the place of the params that have some, which are changed at the end.

    chosen (Sequence): The groups of a step, with the params of each that are to be updated.
    """
    lazy = [(group.entry, params) for group, params in chosen if group.is_lazy]
    if not lazy:
        yield
        return
    before = [entry["params"] for entry, _ in lazy]
    try:
        for entry, params in lazy:
            entry["params"] = [param.cells for param in params]
            for param in params:
                if param.touched is not None:
                    _take_state(optimizer, param.tensor, param.touched)
        yield
        for _, params in lazy:
            for param in params:
                if param.touched is not None:
                    _put_back(optimizer, param.tensor, param.touched)
    finally:
        for (entry, params), tensors in zip(lazy, before):
            entry["params"] = tensors
            for param in params:
                if param.touched is not None:
                    optimizer.state.pop(param.touched.tensor, None)


def _take_state(optimizer: torch.optim.Optimizer, tensor: torch.Tensor, touched: Touched) -> None:
    """Give the touched cells of a param what is kept of them."""
    of_class, state = type(optimizer), optimizer.state.get(tensor)
    if state:
        optimizer.state[touched.tensor] = {
            name: touched.of(value) if is_per_cell(of_class, name, value) else value for name, value in state.items()
        }


@torch.no_grad()
def _put_back(optimizer: torch.optim.Optimizer, tensor: torch.Tensor, touched: Touched) -> None:
    """Put the touched cells of a param, and what is kept of them, back to where they are from."""
    touched.put(touched.tensor, tensor)
    of_class, kept = type(optimizer), optimizer.state.get(touched.tensor)
    if not kept:
        return
    state = optimizer.state[tensor]
    for name, value in kept.items():
        if not is_per_cell(of_class, name, value):
            state[name] = value
            continue
        if name not in state:
            state[name] = torch.zeros_like(tensor, dtype=value.dtype, requires_grad=False)
        touched.put(value, state[name])
