"""The same gradient without traces, backwards in time:

    lambda_t = dL/ds_t + D_(t+1) lambda_(t+1)        grad = sum over t of x_t (Df_t lambda_t)

D acts on each unit by itself, so this is cheap; the rest is one matmul over many steps. It needs the states of all
steps, and all gradients at once: for complete sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .cells import Cell, Linearized, State
from .functional import Recorded, linearize_by_func
from .relations import Weights
from .scan import linear_scan

# Rows, steps times samples, to process at once.
_ROWS = 1024

Signal = list[Tensor]  # one tensor per state. Shape of each: (B, H)


def linearize(cell: Cell, x: Tensor, state: State, weights: Weights) -> Linearized:
    """A step and its derivatives: in closed form, if the cell has one. Leading dimensions: any."""
    found = cell.linearize(x, state, weights)
    return linearize_by_func(cell, x, state, weights) if found is None else found


def back_in_time(step: Linearized, dh: Tensor, after: Signal) -> tuple[list[Tensor], Signal]:
    """The derivatives of a loss of several steps by the states, each unit by itself.

    step (Linearized): K steps. dh (Tensor): dL/dh of each. Shape: (K, B, H).
    after (list[Tensor]): The derivatives of later losses by the state after these steps.
    RETURNS (tuple): lambda by state, Shape of each: (K, B, H); and for the state before these steps.
    """
    n = len(after)
    if n == 1 and (own := step.decay[0][0]) is not None:
        later = torch.cat((own[1:], torch.ones_like(own[:1])))
        values = linear_scan(later.flip(0), dh.flip(0), after[0]).flip(0)
        return [values], [own[0] * values[0]]
    decay = [[None if d is None else d.unbind(0) for d in row] for row in step.decay]
    found: list[list[Tensor]] = [[] for _ in range(n)]
    for t in range(len(dh) - 1, -1, -1):
        here = [after[0] + dh[t], *after[1:]]
        for a in range(n):
            found[a].append(here[a])
        after = [_sum([(row[c], here[a]) for a, row in enumerate(decay)], t, here[0]) for c in range(n)]
    return [torch.stack(steps[::-1]) for steps in found], after


def _sum(pairs: Sequence[tuple[Sequence[Tensor] | None, Tensor]], t: int, like: Tensor) -> Tensor:
    total = None
    for factors, values in pairs:
        if factors is not None:
            total = factors[t] * values if total is None else total.addcmul_(factors[t], values)
    return torch.zeros_like(like) if total is None else total


def deltas(step: Linearized, signal: Sequence[Tensor]) -> dict[str, Tensor]:
    """The signal of each relation for its weights: Df times lambda, summed over states."""
    found = {}
    for name, reach in step.reach.items():
        parts = [of_state * values for of_state, values in zip(reach, signal) if of_state is not None]
        found[name] = sum(parts[1:], parts[0])
    return found


def add_grads_(grads: dict[str, Tensor], cell: Cell, step: Linearized, signal: Sequence[Tensor]) -> None:
    """Add the gradients of all weights for these steps."""
    delta = deltas(step, signal)
    for relation in cell.relations:
        for name, grad in relation.grads(step.inputs[relation.name], delta[relation.name]).items():
            grads[name].add_(grad)


def windows(n_steps: int, n_batch: int) -> list[slice]:
    """The steps, in slices that are large enough for an efficient matmul."""
    size = max(1, _ROWS // max(n_batch, 1))
    return [slice(start, min(start + size, n_steps)) for start in range(0, n_steps, size)]


def adjoint_gradients(
    cell: Cell,
    weights: Weights,
    x: Tensor,
    before: State,
    dh: Tensor,
    active: Sequence[int],
    *,
    inputs: bool = False,
    later: bool = False,
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients of all weights, and dL/dx of each step if asked for, otherwise empty.

    x (Tensor): Shape: (T, B, I). before (tuple[Tensor, ...]): States before each step. Shape of each: (T, B, H).
    dh (Tensor): dL/dh, zero after the end of a sequence. Shape: (T, B, H).
    active (Sequence[int]): The number of sequences that have not ended, at each step.
    inputs (bool): Compute dL/dx.
    later (bool): With the effects of an input on later steps, for cells that are exact: all is as by back-propagation
        through time.
    """
    grads = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    dx = torch.zeros_like(x) if inputs or later else x.new_zeros(0)
    after = [torch.zeros_like(state[0]) for state in before]
    for window in reversed(windows(*x.shape[:2])):
        n = active[window.start]
        of_window = x[window, :n], tuple(state[window, :n] for state in before)
        step = linearize(cell, *of_window, weights)
        signal, earlier = back_in_time(step, dh[window, :n], [rows[:n] for rows in after])
        for rows, new in zip(after, earlier):
            rows[:n] = new
        add_grads_(grads, cell, step, signal)
        if later:
            dx[window, :n] = _through_relations(cell, weights, x.shape[2], step, signal)
        elif inputs:
            dx[window, :n] = input_gradient(cell, weights, *of_window, dh[window, :n], step)
    return grads, dx


def input_gradient(cell: Cell, weights: Weights, x: Tensor, state: State, dh: Tensor, step: Linearized) -> Tensor:
    """dL/dx of the same step: exact, through all units, but without effects of an input on later steps.

    x (Tensor): Shape: (..., I). state (tuple[Tensor, ...]): Before each step. dh (Tensor): dL/dh.
    step (Linearized): The step. It is enough if each relation reaches only its own units.
    """
    if cell.truncated == ():
        signal = [dh, *(torch.zeros_like(dh) for _ in cell.states[1:])]
        return _through_relations(cell, weights, x.shape[-1], step, signal)
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        h = cell.step(x, state, Recorded(cell, weights))[0]
        return torch.autograd.grad(h, x, dh)[0]


def _through_relations(cell: Cell, weights: Weights, width: int, step: Linearized, signal: Sequence[Tensor]) -> Tensor:
    """From the derivatives by the states to those by x. width (int): Of x."""
    delta = deltas(step, signal)
    reading = [relation for relation in cell.relations if relation.inputs[0] == "x"]
    parts = [delta[r.name] @ weights[r.weight_names[0]][:width].T for r in reading]
    return sum(parts[1:], parts[0])
