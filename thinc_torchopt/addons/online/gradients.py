"""The gradient of a batch of sequences: by traces, their adjoint, windows, or BPTT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor

from ...core.checks import Section
from ...core.errors import ShapeError
from .adjoint import adjoint_gradients, input_gradient, states_to_keep
from .cells import Cell, State, make_cell
from .eligibility import BLOCK, ParamDimTraces, check_trace_dtype
from .functional import ByFunc, check_cell, check_real, check_weights
from .relations import Weights
from .scan import scan

VjpMethod = Literal["single-step", "multi-step"]
How = Literal["forward", "adjoint", "auto"]

_WHERE = Section("eligibility_gradients", allows_texts=False)


@dataclass(frozen=True)
class Method:
    """The way to compute gradients. The arguments of `eligibility_gradients`."""

    vjp_method: str = "single-step"
    window: int | None = None
    normalize_matrix_spectrum: bool = False
    traces: str = "forward"
    trace_dtype: torch.dtype | None = None

    def check(self, where: Section) -> None:
        """RAISES (ConfigError): An invalid value, or two that exclude each other."""
        where.choice("vjp_method", self.vjp_method, ("single-step", "multi-step"))
        where.choice("traces", self.traces, ("forward", "adjoint", "auto"))
        where.flag("normalize_matrix_spectrum", self.normalize_matrix_spectrum)
        if self.window is not None:
            where.whole("window", self.window, at_least=1)
        if (self.window is None) is not (self.vjp_method == "single-step"):
            where.refuse(
                "window",
                'a number of steps with vjp_method = "multi-step", and null with "single-step"',
                self.window,
            )
        check_trace_dtype(self.trace_dtype, where)
        if self.traces == "adjoint" and self._needs_traces:
            where.refuse(
                "traces",
                '"forward" or "auto" with vjp_method = "multi-step", normalize_matrix_spectrum or trace_dtype',
                self.traces,
            )

    @property
    def _needs_traces(self) -> bool:
        return self.vjp_method == "multi-step" or self.normalize_matrix_spectrum or self.trace_dtype is not None

    def uses_traces(self, cell: Cell, weights: Weights, n_steps: int) -> bool:
        """Whether to use traces; by "auto", if they are smaller than the states of all steps."""
        if self.traces == "auto" and not self._needs_traces:
            units = next(iter(weights.values())).shape[-1]
            return n_steps * units > sum(weight.numel() for weight in weights.values())
        return self.traces != "adjoint"


def eligibility_gradients(
    cell: str | Cell,
    weights: Mapping[str, Any],
    x: Any,
    output_grads: Any,
    *,
    activation: str = "tanh",
    vjp_method: VjpMethod = "single-step",
    window: int | None = None,
    fast_solve: bool = True,
    normalize_matrix_spectrum: bool = False,
    traces: How = "forward",
    trace_dtype: torch.dtype | None = None,
    lengths: Sequence[int] | None = None,
    state: Sequence[Any] | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients of a recurrent cell by eligibility traces, of the loss sum(output_grads * outputs).

    cell (str | Cell): A name in `CELLS`, or a cell of your own.
    weights (Mapping): By name, e.g. {"Wz.weight": [I + H, H], "Wz.bias": [H], ...}: see cells.py. Tensors or arrays.
    x (Tensor): Inputs. Shape: (T, B, I), or of one sequence (T, I): then all is without B.
    output_grads (Tensor): dL/dh at each step. Shape: (T, B, H).
    activation (str): "tanh", "relu", "sigmoid" or "linear".
    vjp_method (str): "single-step": traces alone. "multi-step": exact inside windows of `window` steps, traces for
        earlier steps. One window is back-propagation through time.
    fast_solve (bool): False: all derivatives by torch.func, for tests: see `ParamDimTraces`.
    normalize_matrix_spectrum (bool): Keep traces from exploding: see `ParamDimTraces`. Biases the gradient.
    traces (str): "forward": memory that does not grow with T, beside inputs and outputs. "adjoint": the same numbers
        backwards in time, from the states of all steps. "auto": the one that needs less memory.
    trace_dtype (torch.dtype | None): Of the traces: see `ParamDimTraces`.
    lengths (Sequence[int]): Of each sequence, at least 0. Default: all T. Later steps are ignored.
    state (Sequence[Tensor]): Before the first step. Shape of each: (B, H). Default: zero.
    RETURNS (tuple): Gradients by name, and the outputs, zero after the end of a sequence. Shape: (T, B, H).
    RAISES (ConfigError): An unknown cell or argument, complex numbers, or NaN. (ShapeError): Shapes that don't fit.
    """
    method = Method(vjp_method, window, normalize_matrix_spectrum, traces, trace_dtype)
    method.check(_WHERE)
    _WHERE.flag("fast_solve", fast_solve)
    cell = make_cell(cell, activation, _WHERE)
    x, dh = _floats("x", x), _floats("output_grads", output_grads)
    if not (state is None or isinstance(state, (list, tuple))):
        _WHERE.refuse("state", "a list with a tensor for each state of the cell", state)
    given = [_floats("state", s) for s in state or ()]
    named = {name: _floats(f"weights['{name}']", weight) for name, weight in _WHERE.section("weights", weights).items()}
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in (x, dh, *given, *named.values())))
    x, dh, named = x.to(dtype), dh.to(dtype), {name: weight.to(dtype) for name, weight in named.items()}
    if one := x.ndim == dh.ndim == 2:
        x, dh, given = x[:, None], dh[:, None], [s[None] for s in given]
    if x.ndim != 3 or dh.ndim != 3 or x.shape[:2] != dh.shape[:2] or 0 in (*x.shape, *dh.shape):
        raise ShapeError(
            f"Can't use x and output_grads in {_WHERE.path}: expected shapes (T, B, I) and (T, B, H), none of them 0, "
            f"found {tuple(x.shape)} and {tuple(dh.shape)}."
        )
    n_steps, n_batch, units = dh.shape
    check_weights(cell, named, x.shape[2], units, _WHERE)
    order, active = order_by_length(_lengths(lengths, n_steps, n_batch), n_steps)
    ends = torch.tensor(active)[:, None, None] > torch.arange(n_batch)[:, None]
    x, dh = (torch.where(ends.to(v.device), v[:, order], 0.0) for v in (x, dh))
    for name, values in (("x", x), ("output_grads", dh), *(("state", s) for s in given), *named.items()):
        if not values.isfinite().all():
            _WHERE.refuse(name, "finite numbers", "NaN or infinite ones")
    begin = _state(cell, None if state is None else given, x.new_zeros(n_batch, units), order)
    check_cell(cell, named, _WHERE)
    if not fast_solve:
        cell = ByFunc(cell)
    traced = method.uses_traces(cell, named, n_steps)
    with torch.no_grad():
        keep = 0 if traced else states_to_keep(n_steps, n_batch)
        outputs, _, before = scan(cell, named, x, begin, active, keep=keep)
        if traced:
            found = TracedGradients(cell, named, n_batch, method)
            found.read(x, begin, dh, active)
            grads = found.traces.grads
        else:
            grads, _ = adjoint_gradients(cell, named, x, before, dh, active)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return grads, outputs[:, 0] if one else outputs[:, back]


class TracedGradients:
    """Gradients of whole sequences by traces: a second forward pass, with the traces.

    Public: `traces`.
    """

    def __init__(self, cell: Cell, weights: Weights, batch_size: int, method: Method):
        self._method = method
        self.cell = cell
        self.weights = weights
        self.traces = ParamDimTraces(
            cell,
            weights,
            batch_size,
            trace_dtype=method.trace_dtype,
            normalize_matrix_spectrum=method.normalize_matrix_spectrum,
        )

    def read(self, x: Tensor, state: State, dh: Tensor, active: Sequence[int], *, inputs: bool = False) -> Tensor:
        """Read sequences from their beginning to their end.

        x (Tensor): Shape: (T, B, I). state: Shape of each: (B, H). dh (Tensor): Shape: (T, B, H). active: see `scan`.
        inputs (bool): Also compute dL/dx of each step.
        RETURNS (Tensor): dL/dx, Shape: (T, B, I); empty without `inputs`.
        """
        dx = torch.zeros_like(x) if inputs else x.new_zeros(0)
        size = self._method.window or BLOCK
        for start in range(0, len(x), size):
            steps = slice(start, min(start + size, len(x)))
            n = active[start]
            block = x[steps, :n], tuple(s[:n] for s in state), dh[steps, :n], active[steps]
            is_last = steps.stop == len(x)
            out = dx[steps, :n] if inputs else None
            if self._method.vjp_method == "multi-step":
                self._read_window(*block, out)
            if self._method.normalize_matrix_spectrum:
                after = self._read_steps(*block, out)
            elif self._method.vjp_method == "multi-step" and is_last:
                break
            else:
                after = self._read_block(*block, out, last=is_last)
            state = tuple(torch.cat((new, old[n:])) for new, old in zip(after, state))
        return dx

    def _read_block(
        self, x: Tensor, state: State, dh: Tensor, active: Sequence[int], out: Tensor | None, *, last: bool
    ) -> State:
        """Several steps; `active` may fall. out (Tensor): For dL/dx. RETURNS (tuple): The state after them."""
        _, after, before = scan(self.cell, self.weights, x, state, active, keep=1)
        step = self.traces.linearize(x, before)
        by_traces = self._method.vjp_method == "single-step"
        goes_on = None
        if active[-1] < len(state[0]):
            goes_on = torch.tensor(active)[:, None, None] > torch.arange(len(state[0]))[:, None]
            goes_on = goes_on.to(x.device)
        self.traces.read_block(step, dh if by_traces else None, goes_on, last=last)
        if by_traces and out is not None:
            out.copy_(input_gradient(self.cell, self.weights, x, before, dh, step))
        return after

    def _read_steps(self, x: Tensor, state: State, dh: Tensor, active: Sequence[int], out: Tensor | None) -> State:
        """The same, step by step."""
        for t, n in enumerate(active):
            now = tuple(s[:n] for s in state)
            step = self.traces.linearize(x[t, :n], now)
            self.traces.apply(step)
            if self._method.vjp_method == "single-step":
                self.traces.solve(dh[t, :n])
                if out is not None:
                    out[t, :n] = input_gradient(self.cell, self.weights, x[t, :n], now, dh[t, :n], step)
            state = tuple(torch.cat((rows, old[n:])) for rows, old in zip(step.state, state))
        return state

    def _read_window(self, x: Tensor, state: State, dh: Tensor, active: Sequence[int], out: Tensor | None) -> None:
        """The exact gradient inside a window, and traces for the effect of earlier steps."""
        grads, earlier, dx = exact_gradients(self.cell, self.weights, x, state, dh, active)
        for name, grad in grads.items():
            self.traces.grads[name].add_(grad)
        self.traces.solve(*earlier)
        if out is not None:
            out.copy_(dx)


def exact_gradients(
    cell: Cell, weights: Weights, x: Tensor, state: State, dh: Tensor, active: Sequence[int]
) -> tuple[dict[str, Tensor], list[Tensor], Tensor]:
    """Back-propagation through time. RETURNS (tuple): Gradients of the weights, of the state before, and of x."""
    with torch.enable_grad():
        x, *begin = (v.detach().requires_grad_() for v in (x, *state))
        leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        outputs, _, _ = scan(cell, leaves, x, tuple(begin), active)
        found = torch.autograd.grad(
            outputs, [*leaves.values(), *begin, x], dh, allow_unused=True, materialize_grads=True
        )
    n = len(leaves)
    return dict(zip(leaves, found[:n])), list(found[n:-1]), found[-1]


# ---------------------------------------------------------------------- arguments


def order_by_length(lengths: Tensor, n_steps: int) -> tuple[Tensor, list[int]]:
    """The samples, longest first, and the number that have not ended at each step."""
    order = torch.argsort(lengths, descending=True, stable=True)
    active = (lengths[None] > torch.arange(n_steps)[:, None]).sum(1)
    return order, active.tolist()


def _lengths(lengths: Sequence[int] | None, n_steps: int, n_batch: int) -> Tensor:
    found = torch.full((n_batch,), n_steps) if lengths is None else torch.as_tensor(lengths)
    whole = found.shape == (n_batch,) and not found.is_floating_point() and found.dtype is not torch.bool
    if not whole or not ((found >= 0) & (found <= n_steps)).all():
        _WHERE.refuse("lengths", f"{n_batch} whole numbers from 0 to {n_steps}", lengths)
    return found


def _floats(name: str, values: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        _WHERE.refuse(name, "a tensor or an array of numbers", type(error).__name__)
    tensor = check_real(name, tensor, _WHERE)
    return tensor.detach() if tensor.is_floating_point() else tensor.to(torch.float32)


def _state(cell: Cell, given: Sequence[Tensor] | None, zero: Tensor, order: Tensor) -> State:
    if given is None:
        return tuple(zero for _ in cell.states)
    if len(given) != len(cell.states) or any(s.shape != zero.shape for s in given):
        raise ShapeError(
            f"Can't use state in {_WHERE.path}: expected {len(cell.states)} of shape {tuple(zero.shape)}, found "
            f"{[tuple(s.shape) for s in given]}."
        )
    return tuple(s[order].to(zero.dtype) for s in given)
