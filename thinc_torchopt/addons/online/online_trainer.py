"""Learning from a stream, token by token: it needs no end, and its memory does not grow.

    trainer = OnlineTrainer(rnn, optimizer, update_every=16)
    for x, target in stream:                    # one token of each of B texts, side by side
        h = trainer.predict(x)
        loss, dh = ...                          # of this token
        trainer.update(x, dh)                   # reads the token; each 16th call updates all params

In a stack, the layer below gets dL/dx of the same step, and computes its own gradient by its traces.

Params change only every `update_every` tokens. The steps between are kept, up to 32, and then applied to the traces at
once, as a block: the same numbers up to rounding, in fewer passes over the traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from thinc.api import Model, Optimizer
from torch import Tensor

from ...core.checks import Section
from ...core.errors import PipelineError, ShapeError, StateError
from ...core.kernels import threads_for
from ...core.schema import Count, check_version, read, refuse, write
from .adjoint import input_gradient
from .cells import Cell, Linearized, State
from .eligibility import BLOCK, ParamDimTraces, TracesState, check_trace_dtype
from .functional import check_real, warn_of_truncation
from .node import SETTINGS, Settings, add_grads, as_array, as_tensor, recurrent_nodes, weights_of

_VERSION = 2
_WHAT = "the state of the online trainer"
_WHERE = Section("OnlineTrainer", allows_texts=False)


@dataclass
class _Layer:
    """state (tuple): After the last token. begin (tuple): Before the block, as the traces are. steps (list): Of the
    block, with dL/dh if there is a loss.
    """

    node: Model
    cell: Cell
    traces: ParamDimTraces
    state: State
    begin: State
    steps: list[tuple[Linearized, Tensor | None]]


@dataclass
class LayerState(TracesState):
    """The saved form of a layer. state (list): Before the block, as the traces are."""

    state: list[Tensor]


@dataclass
class Token:
    """x (Tensor): Shape: (B, nI). dh (Tensor | None): dL/dh. Shape: (B, nO). None: no loss."""

    x: Tensor
    dh: Tensor | None


@dataclass
class OnlineState:
    """The saved form of an online trainer.

    tokens (int): The number of tokens read. layers (list): As they were before the block. block (list): The tokens
    since then. optimizer (dict): Its own state, with the gradients of params.
    """

    version: Count
    tokens: Count
    layers: list[LayerState]
    block: list[Token]
    params: dict[str, Tensor]
    optimizer: dict[str, Any]


class _Together:
    """Models in the form of a pipeline, for an optimizer: components with names."""

    @dataclass
    class Component:
        model: Model
        is_trainable: bool = True

    def __init__(self, models: Mapping[str, Model]):
        self.components = self.pipeline = [(name, self.Component(model)) for name, model in models.items()]


class OnlineTrainer:
    """Train an OnlineRNN on streams. See the module's docstring.

    model (Model): An OnlineRNN, initialized, in one direction, with learning = "d-rtrl" and vjp_method = "single-step".
    optimizer (Optimizer): For this trainer alone, which passes it the models. A TorchOptimizer, if the state is to be
        saved.
    batch_size (int): Number of streams, read side by side.
    update_every (int): Tokens between two updates of the params. The gradient of an update is the sum over these. With
        16 or more, a token is cheaper than with 1: the traces are changed once for up to 32 tokens.
    models (Mapping[str, Model]): All models to update together, e.g. {"embed": embed, "rnn": rnn, "output": output}.
        The names of their params begin with these names. Default: {"online_rnn": model}.
    fast_solve (bool), trace_dtype (torch.dtype | None): See `ParamDimTraces`.
    RAISES (ConfigError): A layer that can't be trained online. (PipelineError): A layer that was not initialized.

    Public: `tokens` (the number read from each stream).
    """

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer,
        *,
        batch_size: int = 1,
        update_every: int = 1,
        models: Mapping[str, Model] | None = None,
        fast_solve: bool = True,
        trace_dtype: torch.dtype | None = None,
    ):
        self.model = model
        self.optimizer = _WHERE.kind("optimizer", optimizer, Optimizer, "a TorchOptimizer, or another of thinc's kind")
        self.batch_size = _WHERE.whole("batch_size", batch_size, at_least=1)
        self.update_every = _WHERE.whole("update_every", update_every, at_least=1)
        self.models: dict[str, Model] = dict(
            _WHERE.section("models", {"online_rnn": model} if models is None else models)
        )
        for name, other in self.models.items():
            _WHERE.kind(f"models.{name}", other, Model, "a thinc Model")
        self.fast_solve = _WHERE.flag("fast_solve", fast_solve)
        self.trace_dtype = check_trace_dtype(trace_dtype, _WHERE)
        self.tokens = 0
        self._layers = [self._layer(node) for node in _nodes(model)]
        known = {id(node) for other in self.models.values() for node in other.walk()}
        if not all(id(layer.node) in known for layer in self._layers):
            _WHERE.refuse("models", "all models that are updated, the OnlineRNN among them", sorted(self.models))
        self._ahead: tuple[Tensor, list[Linearized]] | None = None
        self._block: list[Token] = []
        self._arrays: list[Any] = []  # thinc's, of which these are the weights
        self._weights: list[Tensor] = []
        self._together = _Together(self.models)  # the optimizer holds it weakly
        if hasattr(optimizer, "initialize"):
            optimizer.initialize(self._together)

    def _layer(self, node: Model) -> _Layer:
        cell, method = node.attrs[SETTINGS].cell, node.attrs[SETTINGS].method
        weights = weights_of(node, cell)
        traces = ParamDimTraces(
            cell,
            weights,
            self.batch_size,
            fast_solve=self.fast_solve,
            trace_dtype=self.trace_dtype,
            normalize_matrix_spectrum=method.normalize_matrix_spectrum,
        )
        if cell.truncated is None:
            warn_of_truncation(traces.truncated, _WHERE)
        like = next(iter(weights.values()))
        zero = tuple(like.new_zeros(self.batch_size, like.shape[-1]) for _ in cell.states)
        return _Layer(node, cell, traces, zero, zero, [])

    # ---------------------------------------------------------------------- tokens

    def predict(self, x: Any) -> Any:
        """The output for the next token, without reading it: nothing changes.

        x (Floats2d): Shape: (B, nI), or of one stream (nI,). RETURNS (Floats2d): Shape: (B, nO), or (nO,).
        RAISES (ShapeError): Another shape. (ConfigError): NaN, or complex numbers.
        """
        return self._returned(self._steps(x)[1][-1].state[0].clone(), x)

    def update(self, x: Any, dh: Any = None) -> Any:
        """Read a token, and learn from it if there is a loss.

        x (Floats2d): Shape: (B, nI), or of one stream (nI,). dh (Floats2d): dL/dh of this token. Shape: (B, nO), or
            (nO,). None: no loss.
        RETURNS (Floats2d): dL/dx, in the shape of x.
        RAISES (ShapeError): Another shape. (ConfigError): NaN, or complex numbers. Nothing changes then.
        """
        found = self._read(x, dh)
        self.tokens += 1
        if self.tokens % self.update_every == 0:
            self.apply()
        return found

    def _read(self, x: Any, dh: Any) -> Any:
        given, steps = self._steps(x)
        signal = None if dh is None else _finite("dh", self._given("dh", dh, steps[-1].state[0].shape[1])).clone()
        inputs = [given, *(step.state[0] for step in steps)]
        self._block.append(Token(given, signal))
        with threads_for(self._weights):
            for layer, step, read in reversed(list(zip(self._layers, steps, inputs))):
                before, layer.state = layer.state, step.state
                layer.steps.append((step, signal))
                if signal is not None:
                    signal = input_gradient(layer.traces.cell, layer.traces.weights, read, before, signal, step)
        self._ahead = None
        if len(self._block) == BLOCK:
            self._close_block()
        return self._returned(torch.zeros_like(given) if signal is None else signal, x)

    def _close_block(self) -> None:
        """Apply the steps that were kept to the traces, and add their gradients."""
        with threads_for(self._weights):
            for layer in self._layers:
                layer.traces.learn(layer.steps)
                layer.begin, layer.steps = layer.state, []
        self._block = []

    def _steps(self, x: Any) -> tuple[Tensor, list[Linearized]]:
        """A copy of a token, and the next step of each layer. After `predict` of the same token, they are there, unless
        the nodes have other arrays since: averages, or their own again.
        """
        tensor = self._given("x", x, self._layers[0].node.get_dim("nI"))
        arrays = [layer.node.get_param(name) for layer in self._layers for name in layer.node.param_names]
        are_others = any(array is not known for array, known in zip(arrays, self._arrays))
        if self._ahead is not None and not are_others and torch.equal(self._ahead[0], tensor):
            return self._ahead
        given = tensor = _finite("x", tensor).clone()
        found = []
        if are_others or not self._block:
            self._arrays = arrays
            for layer in self._layers:
                layer.traces.weights = weights_of(layer.node, layer.cell)
            self._weights = [weight for layer in self._layers for weight in layer.traces.weights.values()]
        with threads_for(self._weights):
            for layer in self._layers:
                step = layer.traces.linearize(tensor, layer.state)
                tensor = step.state[0]
                found.append(step)
        self._ahead = given, found
        return self._ahead

    def _given(self, name: str, values: Any, width: int) -> Tensor:
        """A token in the dtype of the weights, without a graph."""
        try:
            tensor = values.detach() if isinstance(values, Tensor) else as_tensor(values)
        except TypeError:
            _WHERE.refuse(name, "an array or a tensor", values)
        if self.batch_size == 1 and tensor.ndim == 1:
            tensor = tensor[None]
        if tensor.shape != (self.batch_size, width):
            raise ShapeError(
                f"Can't use {name} in OnlineTrainer: expected shape {(self.batch_size, width)}, one token of each of "
                f"{self.batch_size} streams, found {tuple(tensor.shape)}."
            )
        return check_real(name, tensor, _WHERE).to(self._layers[0].state[0].dtype)

    def _returned(self, tensor: Tensor, x: Any) -> Any:
        """As an array; of one stream without its dimension, as x."""
        return as_array(self.model, tensor[0] if x.ndim == 1 else tensor)

    def apply(self) -> None:
        """Update all params with the gradients since the last update, for the last tokens of a stream. `update` calls
        this every `update_every` tokens.
        """
        self._close_block()
        self._hand_over()
        joint = getattr(self.optimizer, "joint_step", nullcontext)
        with joint():
            for model in self.models.values():
                model.finish_update(self.optimizer)
        self.optimizer.step_schedules()
        self._ahead = None

    def _hand_over(self) -> None:
        """Add the gradients of the traces to those of thinc's params."""
        for layer in self._layers:
            add_grads(layer.node, layer.cell, layer.traces.grads)
            layer.traces.clear_grads()

    def reset(self, rows: Any = None) -> None:
        """Forget the past at the boundary of a document. rows: The streams, e.g. [0, 3]. None: all."""
        self.detach(rows)
        chosen = self._chosen(rows)
        for layer in self._layers:
            layer.state = layer.begin = tuple(state.clone() for state in layer.state)
            for state in layer.state:
                state[chosen] = 0.0
        self._ahead = None

    def detach(self, rows: Any = None) -> None:
        """Keep the state, but forget the traces: no gradient reaches back. rows: As in `reset`."""
        chosen = None if rows is None else self._chosen(rows)
        self._close_block()
        for layer in self._layers:
            layer.traces.reset(chosen)

    def _chosen(self, rows: Any) -> Any:
        """An index of streams. RAISES (ConfigError): No such streams."""
        try:
            return torch.arange(self.batch_size)[slice(None) if rows is None else rows]
        except (IndexError, TypeError, ValueError):
            _WHERE.refuse("rows", f"the numbers of streams, from 0 to {self.batch_size - 1}", rows)

    # ---------------------------------------------------------------------- saving

    def state_dict(self) -> dict[str, Any]:
        """The whole state, to resume exactly in another process: params, pending gradients, states, traces, and the
        state of the optimizer. Tensors are the trainer's own: copy them to keep them.

        RAISES (StateError): The optimizer can't be saved.
        """
        if not hasattr(self.optimizer, "state_dict"):
            raise StateError(
                "Can't save an OnlineTrainer: expected an optimizer with a state_dict, found "
                f"{type(self.optimizer).__name__}. Use thinc-torchopt.TorchOptimizer.v1, or thinc-torchopt.Adam.v1."
            )
        return write(self._snapshot())

    def _snapshot(self) -> OnlineState:
        layers = [LayerState(**vars(layer.traces.snapshot()), state=list(layer.begin)) for layer in self._layers]
        return OnlineState(_VERSION, self.tokens, layers, self._block, self._params(), self.optimizer.state_dict())

    def load_state_dict(self, saved: Any) -> None:
        """Resume from a saved state. Everything is checked first; an error changes nothing.

        RAISES (StateError): Not a state, or of other models, widths or settings. (ScheduleError): A schedule of the
            optimizer is ahead of it: build a new optimizer.
        """
        check_version(saved, _VERSION, _WHAT)
        state, here = read(OnlineState, saved, _WHAT), self._snapshot()
        expected, found = dict(_tensors(write(here))), dict(_tensors(write(state)))
        names = sorted(expected.keys() | found.keys())
        different = [name for name in names if _form(expected, name) != _form(found, name)]
        if different := [name for name in different if not name.startswith("block/")]:
            first = different[0]
            raise StateError(
                f"Can't load {_WHAT}: expected the params, layers, batch_size and trace_dtype of this trainer, "
                f"found others for {', '.join(different[:5])}. '{first}' has "
                f"{_form(expected, first) or 'no place'} here, and {_form(found, first) or 'no value'} there."
            )
        width, units = self._layers[0].node.get_dim("nI"), self._layers[-1].state[0].shape[1]
        dtype = str(self._layers[0].state[0].dtype).removeprefix("torch.")
        for name in found:
            if name.startswith("block/"):
                shape = self.batch_size, width if name.endswith("/x") else units
                if _form(found, name) != (form := f"shape {shape} in {dtype}"):
                    refuse(_WHAT, name, form, str(_form(found, name)))
        # Gradients may be infinite or NaN: the guard skips such an update.
        spoiled = sorted(
            name for name, tensor in found.items() if "grads" not in name.split("/") and not tensor.isfinite().all()
        )
        if spoiled:
            raise StateError(
                f"Can't load {_WHAT}: expected finite numbers, found NaN or infinite ones in {', '.join(spoiled[:5])}. "
                "They would stay. Load a state that was saved before."
            )
        self.optimizer.load_state_dict(state.optimizer)
        for name, tensor in here.params.items():
            tensor.copy_(state.params[name])
        for layer, of_layer in zip(self._layers, state.layers):
            layer.state = layer.begin = tuple(s.clone() for s in of_layer.state)
            layer.steps = []
            layer.traces.go_on_from(of_layer)
        self.tokens = state.tokens
        self._ahead, self._block = None, []
        for token in state.block:
            self._read(token.x, token.dh)

    def to_disk(self, path: str | Path) -> None:
        """Write `state_dict` to a folder, whole or not at all: tensors as safetensors, the rest as JSON."""
        from ...core.state import write_folder

        write_folder(Path(path), self.state_dict())

    def from_disk(self, path: str | Path) -> None:
        """Load the files of `to_disk`.

        RAISES (StateError): They are damaged, or of other models. (StateReadError): They can't be read.
        """
        from ...core.state import read_folder

        self.load_state_dict(read_folder(Path(path)))

    def _params(self) -> dict[str, Tensor]:
        """All params with a value, by lasting names."""
        from ...core.params import walk

        params: dict[str, Tensor] = {}
        for prefix, model in self.models.items():
            for found in walk(model, prefix):
                if found.param is not None:
                    params[found.name] = found.param.detach()
                elif found.owner.has_param(found.key[1]):  # type: ignore[index]
                    params[found.name] = as_tensor(found.owner.get_param(found.key[1]))  # type: ignore[index]
        return params


def _finite(name: str, tensor: Tensor) -> Tensor:
    """RAISES (ConfigError): NaN, or infinite numbers."""
    # The sum is finite if all numbers are, unless it overflows; and it takes a fifth of the time.
    if not isfinite(tensor.sum().item()) and not tensor.isfinite().all():
        found = f"NaN, or numbers that are infinite in {str(tensor.dtype).removeprefix('torch.')}"
        _WHERE.refuse(name, "finite numbers: what is read stays in the state", found)
    return tensor


def _nodes(model: Model) -> list[Model]:
    """The layers of an OnlineRNN. RAISES (ConfigError, PipelineError): They can't be trained online."""
    nodes = recurrent_nodes(model)
    if not nodes:
        _WHERE.refuse("model", "an OnlineRNN", model.name)
    for node in nodes:
        settings: Settings = node.attrs[SETTINGS]
        if settings.reverse:
            _WHERE.refuse("model", "bidirectional = false: a stream can't be read backwards", True)
        if settings.learning != "d-rtrl" or settings.method.vjp_method != "single-step":
            found = f"{settings.learning}, {settings.method.vjp_method}"
            _WHERE.refuse("model", 'learning = "d-rtrl" with vjp_method = "single-step"', found)
        if node.attrs["dropout_rate"]:
            _WHERE.refuse("model", "dropout = 0", node.attrs["dropout_rate"])
        if not all(node.has_param(name) for name in node.param_names):
            raise PipelineError(
                "Can't train the model in OnlineTrainer: expected an initialized one. Call model.initialize() first."
            )
    return nodes


def _tensors(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a state except the optimizer's, which checks its own."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            if path or key != "optimizer":
                yield from _tensors(value, f"{path}/{key}" if path else str(key))
    elif isinstance(tree, (list, tuple)):
        for i, value in enumerate(tree):
            yield from _tensors(value, f"{path}/{i}")


def _form(tensors: Mapping[str, Tensor], name: str) -> str | None:
    """The shape and dtype of one of the tensors."""
    if (tensor := tensors.get(name)) is None:
        return None
    return f"shape {tuple(tensor.shape)} in {str(tensor.dtype).removeprefix('torch.')}"
