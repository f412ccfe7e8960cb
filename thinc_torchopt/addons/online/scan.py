"""The forward pass: a cell over a batch of sequences.

Sequences are sorted by length, the longest first, so at each step the first `active[t]` samples have not ended. The
input half of every matmul is computed for many steps at once, without padding (`Packing`).

A step that is linear in the state, h = a h + b, needs no loop over all steps (`linear_scan`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isqrt

import torch
from torch import Tensor
from torch.nn.functional import pad

from .cells import Cell, State
from .relations import Dense, Weights, concatenated

# Steps whose input half is computed at once. Its memory does not grow with the sequence.
CHUNK = 64
# Rows, steps times samples, of a linear scan at once: as above.
_ROWS = 4096
# A plain loop is as fast for fewer steps, and for more units times samples.
_FEW_STEPS = 9
_MANY_UNITS = 4096


def scan(
    cell: Cell, weights: Weights, x: Tensor, state: State, active: Sequence[int], *, keep: int = 0
) -> tuple[Tensor, State, tuple[Tensor, ...]]:
    """Run a cell over sequences.

    x (Tensor): Shape: (T, B, I). state (tuple[Tensor, ...]): Before the first step. Shape of each: (B, H).
    active (Sequence[int]): The number of samples that have not ended, at each step. Never grows.
    keep (int): Also return the states before every `keep`-th step. 1: before each step. 0: none.
    RETURNS (tuple): Outputs, zero after the end of a sequence, Shape: (T, B, H); the state of each sample after its
        last step; with `keep`, states, Shape of each: (T / keep, B, H).
    """
    n_batch, units = state[0].shape
    if not torch.is_grad_enabled() and len(x) and cell.coefficients(x[:1], weights) is not None:
        return _scan_linear(cell, weights, x, state[0], active, keep=keep)
    outputs = _Stack(len(x), n_batch, units, like=state[0])
    before = [_Stack(-(-len(x) // keep), n_batch, units, like=s) for s in state] if keep else []
    ended: list[State] = []
    relate = _InputsAhead(cell, weights)
    for t, x_t in enumerate(_steps(x, active, relate)):
        if (n := active[t]) < len(state[0]):
            ended.append(tuple(s[n:] for s in state))
            state = tuple(s[:n] for s in state)
        if before and t % keep == 0:
            for stack, s in zip(before, state):
                stack.append(t // keep, s)
        state = cell.step(relate.at(t, x_t), state, relate)
        outputs.append(t, state[0])
    for rows in reversed(ended):
        state = tuple(torch.cat(pair) for pair in zip(state, rows))
    return outputs.tensor(), state, tuple(stack.tensor() for stack in before)


def _scan_linear(
    cell: Cell, weights: Weights, x: Tensor, state: Tensor, active: Sequence[int], *, keep: int
) -> tuple[Tensor, State, tuple[Tensor, ...]]:
    outputs, begin = x.new_zeros(*x.shape[:2], state.shape[1]), state
    for steps in windows(active, _ROWS):
        n = active[steps.start]
        packing = Packing(active[steps], n, x.device)
        found = cell.coefficients(packing.pack(x[steps, :n]), weights)
        assert found is not None
        a, b = found
        h = linear_scan(packing.pad(a, 1.0), packing.pad(b), state[:n])  # after its end, a state stays
        outputs[steps, :n] = h if packing.is_full else packing.pad(packing.pack(h))
        state = torch.cat((h[-1], state[n:]))
    return outputs, (state,), (torch.cat((begin[None], outputs[keep - 1 : -1 : keep])),) if keep else ()


def windows(active: Sequence[int], rows: int) -> Iterator[slice]:
    """All steps, in order, in stretches that have up to so many rows. active: see `scan`."""
    start = 0
    while start < len(active):
        stop = min(start + max(1, rows // max(1, active[start])), len(active))
        yield slice(start, stop)
        start = stop


class Packing:
    """Steps of several sequences, with padding and without: then the rows of the first step, of the second, and so on,
    as in torch's PackedSequence.

    active (Sequence[int]): The number of sequences that have not ended, at each step. n_batch (int): Of all.
    """

    def __init__(self, active: Sequence[int], n_batch: int, device: torch.device):
        self._shape = len(active), n_batch
        self._rows: Tensor | None = None
        if active[-1] < n_batch:
            goes_on = torch.arange(n_batch) < torch.tensor(active)[:, None]
            self._rows = goes_on.flatten().nonzero()[:, 0].to(device)

    @property
    def is_full(self) -> bool:
        """Whether there is no padding."""
        return self._rows is None

    def pack(self, steps: Tensor) -> Tensor:
        """steps (Tensor): Shape: (T, B, W). RETURNS (Tensor): Shape: (rows, W)."""
        rows = steps.flatten(0, 1)
        return rows if self._rows is None else rows.index_select(0, self._rows)

    def pad(self, rows: Tensor, value: float = 0.0) -> Tensor:
        """rows (Tensor): Shape: (rows, W). RETURNS (Tensor): With `value` elsewhere. Shape: (T, B, W)."""
        n_steps, n_batch = self._shape
        if self._rows is not None:
            padded = rows.new_full((n_steps * n_batch, rows.shape[1]), value)
            rows = padded.index_copy_(0, self._rows, rows)
        return rows.reshape(n_steps, n_batch, rows.shape[1])


def linear_scan(a: Tensor, b: Tensor, begin: Tensor) -> Tensor:
    """h_t = a_t h_(t-1) + b_t, for all t.

    In about sqrt(T) blocks of sqrt(T) steps: one loop over the steps of all blocks, from zero, and one over the blocks.
    It only multiplies and adds, so a may be 0.

    a, b (Tensor): Shape: (T, B, H). begin (Tensor): h before the first step. Shape: (B, H).
    RETURNS (Tensor): Shape: (T, B, H).
    """
    n_steps = len(a)
    if n_steps < _FEW_STEPS or begin.numel() >= _MANY_UNITS:
        found = []
        for a_t, b_t in zip(a.unbind(0), b.unbind(0)):
            begin = torch.addcmul(b_t, a_t, begin)
            found.append(begin)
        return torch.stack(found)
    size = isqrt(n_steps)
    blocks = -(-n_steps // size)
    if rest := blocks * size - n_steps:
        a, b = (torch.cat((steps, steps.new_zeros(rest, *begin.shape))) for steps in (a, b))
    (a_0, *a_rest), (b_0, *b_rest) = (steps.reshape(blocks, size, *begin.shape).unbind(1) for steps in (a, b))
    # Of each block: the states from a begin of zero, and how much of its begin is left.
    states, left = [b_0], [a_0]
    for a_k, b_k in zip(a_rest, b_rest):
        states.append(torch.addcmul(b_k, a_k, states[-1]))
        left.append(left[-1] * a_k)
    begins = [begin]
    for last, of_begin in zip(states[-1][:-1], left[-1][:-1]):
        begins.append(torch.addcmul(last, of_begin, begins[-1]))
    every = torch.stack(states, 1).addcmul_(torch.stack(left, 1), torch.stack(begins)[:, None])
    return every.reshape(blocks * size, *begin.shape)[:n_steps]


def _steps(x: Tensor, active: Sequence[int], relate: _InputsAhead) -> Iterator[Tensor]:
    """The input of each step, of the sequences that have not ended. Shape of each: (n, I)."""
    for start in range(0, len(x), CHUNK):
        steps = slice(start, start + CHUNK)
        rows = Packing(active[steps], x.shape[1], x.device).pack(x[steps])
        relate.begin(rows, active[steps])
        yield from rows.split(list(active[steps]))


class _InputsAhead:
    """A `relate` with the cell's input for many steps: that half of a relation is computed ahead."""

    def __init__(self, cell: Cell, weights: Weights):
        self._relations = {relation.name: relation for relation in cell.relations}
        self._weights = weights

    def begin(self, rows: Tensor, sizes: Sequence[int]) -> None:
        """rows (Tensor): The input of the next steps, one after the other. sizes (Sequence[int]): Rows of each."""
        self._rows, self._sizes = rows, list(sizes)
        self._ahead: dict[str, tuple[Tensor, ...]] = {}

    def at(self, t: int, x: Tensor) -> Tensor:
        self._t, self._x = t % CHUNK, x
        return x

    def __call__(self, name: str, *parts: Tensor) -> Tensor:
        relation = self._relations[name]
        if not isinstance(relation, Dense):
            return relation.apply(self._weights, concatenated(parts))
        weight, *biases = (self._weights[key] for key in relation.weight_names)
        bias = biases[0] if biases else weight.new_zeros(weight.shape[1])
        rest = parts
        if parts[0] is self._x:
            if name not in self._ahead:
                of_input = self._rows @ weight[: self._x.shape[-1]] + bias
                self._ahead[name] = of_input.split(self._sizes)
            bias, weight, rest = self._ahead[name][self._t], weight[self._x.shape[-1] :], parts[1:]
            if not rest:
                return bias
        return torch.addmm(bias, rest[0] if len(rest) == 1 else torch.cat(rest, -1), weight)


class _Stack:
    """Steps of (B, H), stacked to (T, B, H): in place where no gradient is needed."""

    def __init__(self, n_steps: int, n_batch: int, units: int, *, like: Tensor):
        self._n_batch = n_batch
        self._steps: list[Tensor] | None = [] if torch.is_grad_enabled() else None
        if self._steps is None:
            self._tensor = like.new_zeros(n_steps, n_batch, units)

    def append(self, t: int, rows: Tensor) -> None:
        if self._steps is None:
            self._tensor[t, : len(rows)] = rows
        elif len(rows) < self._n_batch:
            self._steps.append(pad(rows, (0, 0, 0, self._n_batch - len(rows))))
        else:
            self._steps.append(rows)

    def tensor(self) -> Tensor:
        return self._tensor if self._steps is None else torch.stack(self._steps)
