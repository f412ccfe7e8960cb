"""The same gradient without traces, backwards in time:

    lambda_t = dL/ds_t + D_(t+1) lambda_(t+1)        grad = sum over t of x_t (Df_t lambda_t)

D acts on each unit by itself, so this is cheap; the rest is one matmul over many steps. It needs the states of all
steps, and all gradients at once: for complete sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from .cells import Cell, Linearized, State
from .functional import Recorded, linearize_by_func
from .relations import Held, Weights
from .scan import Packing, linear_scan, scan, windows

# Rows, steps times samples, to process at once; and rows whose states are kept. Of more, only those at the beginning of
# each window are, and the others are computed again: memory beside input and output hardly grows with the sequence.
_ROWS = 1024
_KEPT_ROWS = 16 * _ROWS


def linearize(cell: Cell, x: Tensor, state: State, weights: Weights) -> Linearized:
    """A step and its derivatives: in closed form, if the cell has one. Leading dimensions: any."""
    found = cell.linearize(x, state, weights)
    return linearize_by_func(cell, x, state, weights) if found is None else found


def back_in_time(
    decay: Sequence[Sequence[Tensor | None]], after: Tensor, dh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Derivatives by the states of K steps, each unit by itself, of values that depend on the state after them.

    decay (list): D of the steps. Shape of each: (K, B, H).
    after (Tensor): The derivatives by the state after these steps, of S values. Shape: (S, states, B, H).
    dh (Tensor): The first value is a loss that also depends on the output of each step: dL/dh. Shape: (K, B, H).
    RETURNS (tuple): By the state after each step, Shape: (K, S, states, B, H); and before all of them.
    """
    if len(decay) == 1 and (own := decay[0][0]) is not None:
        later = torch.cat((own[1:], torch.ones_like(own[:1]))).flip(0)
        found = []
        if dh is not None:
            found.append(linear_scan(later, dh.flip(0), after[0, 0])[:, None])
            after = after[1:]
        if len(after):
            products = torch.stack(list(accumulate(later.unbind(0), torch.mul)))  # quicker than cumprod
            found.append(products[:, None] * after[:, 0])
        values = torch.cat(found, 1).flip(0)[:, :, None]
        return values, values[0] * own[0]
    like = next(d for row in decay for d in row if d is not None)
    rows = torch.stack([torch.stack([torch.zeros_like(like) if d is None else d for d in row], 1) for row in decay])
    by_state = [row.unbind(0) for row in rows]
    after, steps = after.clone(), []
    for t in range(len(like) - 1, -1, -1):
        if dh is not None:
            after[0, 0] += dh[t]
        steps.append(after)
        before = after[:, :1] * by_state[0][t]
        for a, row in enumerate(by_state[1:], 1):
            before.addcmul_(after[:, a : a + 1], row[t])
        after = before
    return torch.stack(steps[::-1]), after


def deltas(step: Linearized, signal: Sequence[Tensor]) -> dict[str, Tensor]:
    """The signal of each use of a relation for its weights: Df times lambda, summed over states. signal: Of the first
    states. A use that does not reach these has none.
    """
    found = {}
    for key, reach in step.reach.items():
        parts = [of_state * values for of_state, values in zip(reach, signal) if of_state is not None]
        if parts:
            found[key] = sum(parts[1:], parts[0])
    return found


def add_grads_(grads: dict[str, Tensor], cell: Cell, step: Linearized, signal: Sequence[Tensor]) -> None:
    """Add the gradients of all weights for these steps."""
    delta = deltas(step, signal)
    for relation in cell.relations:
        for key, inputs, _ in step.uses_of(relation):
            if key in delta:
                for name, grad in relation.grads(inputs, delta[key]).items():
                    grads[name].add_(grad)


def states_to_keep(n_steps: int, n_batch: int) -> int:
    """The distance in steps between the states that `adjoint_gradients` needs."""
    return 1 if n_steps * n_batch <= _KEPT_ROWS else max(1, _ROWS // n_batch)


def adjoint_gradients(
    cell: Cell,
    weights: Weights,
    x: Tensor,
    before: State,
    dh: Tensor,
    active: Sequence[int],
    *,
    inputs: Literal["step", "all"] | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients of all weights, and dL/dx of each step if asked for, otherwise empty.

    x (Tensor): Shape: (T, B, I).
    before (tuple[Tensor, ...]): From `scan` with keep = `states_to_keep`. Shape of each: (T / keep, B, H).
    dh (Tensor): dL/dh, zero after the end of a sequence. Shape: (T, B, H).
    active (Sequence[int]): The number of sequences that have not ended, at each step.
    inputs ("step" | "all" | None): Compute dL/dx: of the same step alone, or with the effects of an input on later
        steps. The latter is for cells that are exact: all is as by back-propagation through time.
    """
    grads = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    dx = torch.zeros_like(x) if inputs else x.new_zeros(0)
    after = torch.stack([torch.zeros_like(state[0]) for state in before])[None]
    keep = states_to_keep(*x.shape[:2])
    evenly = (slice(start, start + keep) for start in range(0, len(x), keep))
    for window in reversed([*(windows(active, _ROWS) if keep == 1 else evenly)]):
        n = active[window.start]
        if keep == 1:
            states = tuple(state[window, :n] for state in before)
        else:
            begin = tuple(state[window.start // keep, :n] for state in before)
            _, _, states = scan(cell, weights, x[window, :n], begin, active[window], keep=1)
        packing = Packing(active[window], n, x.device)
        rows = packing.pack(x[window, :n]), tuple(map(packing.pack, states))
        step = linearize(cell, *rows, weights)
        decay = [[d if d is None else packing.pad(d) for d in row] for row in step.decay]
        found, after[:, :, :n] = back_in_time(decay, after[:, :, :n], dh[window, :n])
        signal = [packing.pack(of_state) for of_state in found[:, 0].unbind(1)]
        add_grads_(grads, cell, step, signal)
        if inputs == "all":
            dx[window, :n] = packing.pad(_through_relations(cell, weights, x.shape[2], step, signal))
        elif inputs:
            dx[window, :n] = packing.pad(input_gradient(cell, weights, *rows, packing.pack(dh[window, :n]), step))
    return grads, dx


def input_gradient(cell: Cell, weights: Weights, x: Tensor, state: State, dh: Tensor, step: Linearized) -> Tensor:
    """dL/dx of the same step: exact, through all units, but without effects of an input on later steps.

    x (Tensor): Shape: (..., I). state (tuple[Tensor, ...]): Before each step. dh (Tensor): dL/dh.
    step (Linearized): The step. It is enough if each relation reaches only its own units.
    """
    if cell.truncated == ():
        return _through_relations(cell, weights, x.shape[-1], step, [dh])
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        h = cell.step(x, state, Recorded(cell, weights))[0]
        return torch.autograd.grad(h, x, dh)[0]


def _through_relations(cell: Cell, weights: Weights, width: int, step: Linearized, signal: Sequence[Tensor]) -> Tensor:
    """From the derivatives by the states to those by x. width (int): Of x."""
    delta = deltas(step, signal)
    reading = [
        (r.weight_names[0], delta[key])
        for r in cell.relations
        if r.inputs[0] == "x"
        for key, *_ in step.uses_of(r)
        if key in delta
    ]
    if isinstance(weights, Held) and len(reading) > 1:
        names, parts = zip(*reading)
        return torch.cat(parts, -1) @ weights.joined(names, width).T
    through = [of_use @ weights[name][:width].T for name, of_use in reading]
    return sum(through[1:], through[0])
