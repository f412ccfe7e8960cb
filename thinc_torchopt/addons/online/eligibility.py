"""Eligibility traces: the gradient of a recurrent cell without going back in time (D-RTRL).

    eps_w^t = D^t eps_w^(t-1) + instant^t             one trace per weight and sample, whatever the length
    grad_w += sum over samples of (dL^t/dh) eps_w^t   at each step, if there is a loss

A relation computes y = input @ weight + bias, with one y per unit; s_a are the states of a unit (an LSTM has two). D is
ds_a/ds_c of the step before, with the unit's own recurrent weight, and the instant term is input * ds_a/dy. Both have
only the effects of a unit on itself (SnAp-1). Effects through other units are left out; that is the approximation. With
elementwise recurrence it is exact.

PAPERS: Williams and Zipser 1989 (RTRL); Menick et al. 2021, https://arxiv.org/abs/2006.07232 (SnAp-1);
    Wang et al. 2024 (D-RTRL), whose code is https://github.com/chaobrain/braintrace.
DIFFERENCES: D is the true diagonal, with the unit's own recurrent weight, and each weight counts once: not so in
    braintrace's D and LSTM. Several steps can be made at once: the same numbers, in fewer passes over the traces.
    `normalize_matrix_spectrum` divides instant terms and traces by the largest value of each sample; braintrace by that
    of the whole batch, so that a sample's gradient depends on the others. With one sample, both are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.checks import Section
from .adjoint import add_grads_, back_in_time, linearize
from .cells import Cell, Linearized, State
from .functional import ByFunc, check_cell
from .relations import Relation, Weights, per_unit, read_trace_

# Steps made at once, if all are known. The traces are then read and written once for all of them.
BLOCK = 32

_WHERE = Section("ParamDimTraces", allows_texts=False)
_READ = Section("ParamDimTraces.trace_of", verb="use")

Traces = list[dict[str, Tensor]]  # by state and weight. Shape of each: (B, ...weight)


class ParamDimTraces:
    """The traces of a cell, and the gradients from them.

    cell (Cell): Defines a step. weights (Mapping): Its weights, by name; they may change between steps.
    batch_size (int): Number of sequences. Memory: batch_size x weights x states.
    fast_solve (bool): Solve element by element, in closed form where the cell has one. False: by torch.func, in
        general; the same numbers up to rounding, slowly.
    trace_dtype (torch.dtype | None): Of the traces. None: as the weights. In bfloat16 and float16 they take half of the
        memory, but a trace that decays by less than about 1/500 (1/4,000) a step does not decay at all.
    normalize_matrix_spectrum (bool): Divide D by its largest eigenvalue, and instant terms and traces by their largest
        value, per sample, where these are above 1. Nothing can explode; the gradient is biased.

    RAISES (ConfigError): A cell that traces can't follow. (ShapeError): Weights of other names or shapes.

    Public: `grads` (since `clear_grads`), `truncated` (the relations that are only partly followed).
    """

    def __init__(
        self,
        cell: Cell,
        weights: Weights,
        batch_size: int,
        *,
        fast_solve: bool = True,
        trace_dtype: torch.dtype | None = None,
        normalize_matrix_spectrum: bool = False,
    ):
        self.cell = cell if _WHERE.flag("fast_solve", fast_solve) else ByFunc(cell)
        self.weights = weights
        self.trace_dtype = check_trace_dtype(trace_dtype, _WHERE)
        self.normalize = normalize_matrix_spectrum
        self.truncated = check_cell(cell, weights, _WHERE)
        self.grads = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.init(batch_size)

    def init(self, batch_size: int) -> None:
        """Start sequences without a past."""
        self._traces: Traces = [
            {
                name: weight.new_zeros(batch_size, *weight.shape, dtype=self.trace_dtype)
                for name, weight in self.weights.items()
            }
            for _ in self.cell.states
        ]
        self._is_zero = True

    def reset(self, rows: Any = None) -> None:
        """Forget the past, at the boundary of a document. rows: The samples. None: all."""
        for of_state in self._traces:
            for trace in of_state.values():
                trace[slice(None) if rows is None else rows] = 0.0
        self._is_zero = self._is_zero or rows is None

    def trace_of(self, weight: str) -> Tensor:
        """RETURNS (Tensor): A copy. Shape: (B, ...weight, states). RAISES (ConfigError): There is no such weight."""
        _READ.choice("weight", weight, tuple(self.weights))
        return torch.stack([of_state[weight] for of_state in self._traces], -1)

    def clear_grads(self) -> None:
        """Set all gradients to zero."""
        for grad in self.grads.values():
            grad.zero_()

    # ---------------------------------------------------------------------- one step

    def update(self, x: Tensor, state: State) -> State:
        """Make one step. x (Tensor): Of the first samples. Shape: (n, I). state: Shape of each: (n, H).

        RETURNS (tuple[Tensor, ...]): The state after it.
        """
        return self.apply(self.linearize(x, state))

    def linearize(self, x: Tensor, state: State) -> Linearized:
        """A step and its derivatives, without applying it."""
        return linearize(self.cell, x, state, self.weights)

    def apply(self, step: Linearized) -> State:
        """Apply a step from `linearize`."""
        decay = _bounded(step.decay) if self.normalize else step.decay
        for relation in self.cell.relations:
            uses = step.uses_of(relation)
            n = len(uses[0][1])
            traces = [{name: of_state[name][:n] for name in relation.weight_names} for of_state in self._traces]
            _decay_(traces, decay)
            if self.normalize:
                _add_bounded_(relation, traces, uses)
                continue
            for _, inputs, reach in uses:
                for trace, of_state in zip(traces, reach):
                    if of_state is not None:
                        relation.add_instant_(trace, inputs, of_state)
        self._is_zero = False
        return step.state

    def solve(self, *signal: Tensor) -> None:
        """Add the gradients of a loss. signal (Tensor): dL/dh of the first samples, and dL/ds of further states. Shape
        of each: (n, H).
        """
        if not self._is_zero:
            for of_state, values in zip(self._traces, signal):
                for name, trace in of_state.items():
                    read_trace_(self.grads[name], trace[: len(values)], values)

    # ---------------------------------------------------------------------- several steps

    def learn(self, steps: Sequence[tuple[Linearized, Tensor | None]]) -> None:
        """Apply steps from `linearize`, in their order, and add the gradients of their losses, as `apply` and `solve`
        do one at a time.

        steps (Sequence): Each with dL/dh. Shape: (B, H). None: no loss.
        """
        if len(steps) < 2 or self.normalize:
            for step, dh in steps:
                self.apply(step)
                if dh is not None:
                    self.solve(dh)
            return
        losses = None
        if any(dh is not None for _, dh in steps):
            zero = torch.zeros_like(steps[0][0].state[0])
            losses = torch.stack([zero if dh is None else dh for _, dh in steps])
        self.read_block(_joined([step for step, _ in steps]), losses)

    def read_block(
        self, step: Linearized, dh: Tensor | None = None, goes_on: Tensor | None = None, *, last: bool = False
    ) -> None:
        """Apply several steps at once: the same numbers up to rounding. They can't be normalized.

        step (Linearized): K steps of the first n samples. dh (Tensor): dL/dh of each. Shape: (K, n, H). None: no loss.
        goes_on (Tensor): The samples that have not ended, at each step. Shape: (K, n, 1). None: all.
        last (bool): Nothing follows: add the gradients, but leave the traces.
        """
        states, like = range(len(self._traces)), step.state[0]
        decay = step.decay
        if goes_on is not None:
            full = _filled(decay, like)
            decay = [[torch.where(goes_on, d, float(a == c)) for c, d in enumerate(row)] for a, row in enumerate(full)]
        # Values that depend on the state after the block: the loss (not yet), and each of the states.
        after = like.new_zeros(len(states) + 1, len(states), *like.shape[1:])
        for a in states:
            after[a + 1, a] = 1.0
        first, end = int(dh is None), 1 if last else None
        found, before = back_in_time(decay, after[first:end], dh)
        if dh is not None:
            add_grads_(self.grads, self.cell, step, found[:, 0].unbind(1))
            self.solve(*before[0])
            found, before = found[:, 1:], before[1:]
        if not last:
            self._move(step, found if goes_on is None else found * goes_on[:, None, None], before)

    def _move(self, step: Linearized, later: Tensor, decay: Tensor) -> None:
        """Apply several steps to the traces. later (Tensor): d s_a after them / d s_c after each. Shape: (K, a, c, n,
        H). decay (Tensor): d s_a / d s_c before them.
        """
        for relation in self.cell.relations:
            n = step.state[0].shape[1]
            traces = [{name: of_state[name][:n] for name in relation.weight_names} for of_state in self._traces]
            if not self._is_zero:
                _decay_(traces, decay)
            for _, inputs, reach in step.uses_of(relation):
                for a, trace in enumerate(traces):
                    parts = [later[:, a, c] * r for c, r in enumerate(reach) if r is not None]
                    relation.add_block_(trace, inputs, sum(parts[1:], parts[0]))
        self._is_zero = False

    # ---------------------------------------------------------------------- state

    def snapshot(self) -> TracesState:
        """The traces and gradients. Not copied."""
        traces = {name: [of_state[name] for of_state in self._traces] for name in self.weights}
        return TracesState(traces, self.grads, self._is_zero)

    def go_on_from(self, saved: TracesState) -> None:
        """Copy the values of another object with the same cell, shapes and batch size."""
        for name in self.weights:
            for of_state, trace in zip(self._traces, saved.traces[name]):
                of_state[name].copy_(trace)
            self.grads[name].copy_(saved.grads[name])
        self._is_zero = saved.is_zero


@dataclass
class TracesState:
    """The traces of a cell, by weight and state, and the gradients from them.

    is_zero (bool): All traces are zero.
    """

    traces: dict[str, list[Tensor]]
    grads: dict[str, Tensor]
    is_zero: bool


def check_trace_dtype(dtype: torch.dtype | None, where: Section) -> torch.dtype | None:
    """RAISES (ConfigError): Not floats."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        where.refuse("trace_dtype", "a dtype of floats, e.g. torch.bfloat16, or None", dtype)
    return dtype


def _joined(steps: Sequence[Linearized]) -> Linearized:
    """Steps as one, with a leading dimension."""
    # An input may be that of several relations.
    stacked: dict[tuple[int, ...], Tensor] = {}

    def stack(tensors: Sequence[Tensor]) -> Tensor:
        key = tuple(map(id, tensors))
        if key not in stacked:
            stacked[key] = torch.stack(list(tensors))
        return stacked[key]

    def stack_if_any(tensors: Sequence[Tensor | None]) -> Tensor | None:
        found = [tensor for tensor in tensors if tensor is not None]
        return stack(found) if found else None

    first, n = steps[0], range(len(steps[0].state))
    return Linearized(
        tuple(torch.stack(tensors) for tensors in zip(*(step.state for step in steps))),
        [[stack_if_any([step.decay[a][c] for step in steps]) for c in n] for a in n],
        {key: [stack_if_any([step.reach[key][a] for step in steps]) for a in n] for key in first.reach},
        {key: stack([step.inputs[key] for step in steps]) for key in first.inputs},
        first.again,
    )


def _decay_(traces: Traces, decay: Sequence[Sequence[Tensor | None]] | Tensor) -> None:
    """traces = D traces."""
    for name in traces[0]:
        now = [of_state[name] for of_state in traces]
        before = [*(trace.clone() for trace in now[:-1]), now[-1]]  # the last is changed last
        for a, trace in enumerate(now):
            own = decay[a][a]
            trace.zero_() if own is None else trace.mul_(per_unit(own, trace))
            for c, factor in enumerate(decay[a]):
                if c != a and factor is not None:
                    trace.addcmul_(per_unit(factor, trace), before[c])


def _filled(decay: list[list[Tensor | None]], like: Tensor) -> list[list[Tensor]]:
    return [[torch.zeros_like(like) if d is None else d for d in row] for row in decay]


# ---------------------------------------------------------------------- normalize_matrix_spectrum


def _bounded(decay: list[list[Tensor | None]]) -> list[list[Tensor | None]]:
    """D divided by its largest eigenvalue, per sample and unit, where that is above 1."""
    like = next(d for row in decay for d in row if d is not None)
    full = _filled(decay, like)
    if len(full) == 1:
        largest = full[0][0].abs()
    else:
        matrices = torch.stack([torch.stack(row, -1) for row in full], -2)
        largest = torch.linalg.eigvals(matrices).abs().amax(-1)
    return [[d / largest.clamp(min=1.0) for d in row] for row in full]


def _add_bounded_(relation: Relation, traces: Traces, uses: Sequence[tuple[Any, Tensor, list[Tensor | None]]]) -> None:
    """traces += instant terms, both divided by their largest value, per sample."""
    like = next(r for *_, reach in uses for r in reach if r is not None)
    instants = [
        [relation.instant(inputs, torch.zeros_like(like) if r is None else r) for r in reach]
        for _, inputs, reach in uses
    ]
    for name in relation.weight_names:
        of_states = [trace[name] for trace in traces]
        instant = [sum((one[a][name] for one in instants[1:]), instants[0][a][name]) for a in range(len(traces))]
        scale = _scale(instant)
        for trace, of_state in zip(of_states, instant):
            trace.add_(of_state / scale)
        scale = _scale(of_states)
        for trace in of_states:
            trace.div_(scale)


def _scale(values: list[Tensor]) -> Tensor:
    """max(1, largest value) of each sample, over all states."""
    largest = torch.stack([v.abs().flatten(1).amax(1) for v in values]).amax(0).clamp(min=1.0)
    return largest.reshape(-1, *[1] * (values[0].ndim - 1))
