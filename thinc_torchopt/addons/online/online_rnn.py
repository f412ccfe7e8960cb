"""OnlineRNN: a recurrent layer for thinc and spaCy that is trained by eligibility traces, or by BPTT.

    spaCy    [components.tok2vec.model.encode] @architectures = "thinc-torchopt.OnlineRNNEncoder.v1"
    thinc    [model] @layers = "thinc-torchopt.OnlineRNN.v1"

Both ways of learning have the same params. With "d-rtrl", the gradient for the layer below is exact for the same step,
but lacks the effects of an input on later steps; the recurrent weights learn these by their traces. In a stack, the
layers below the last one learn from such gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, List, Literal, Optional, Sequence, TypeVar, Union

import torch
from thinc.api import Model, chain, noop, with_padded
from thinc.types import Floats2d, Floats3d, Padded, Ragged
from torch import Tensor

from ...core.checks import Section
from ...core.errors import ShapeError
from .cells import Cell, make_cell
from .functional import warn_of_truncation
from .gradients import How, Method, VjpMethod
from .node import SETTINGS, Settings, as_tensor, both_ways, one_way, recurrent_nodes

SequencesT = TypeVar("SequencesT", bound=Union[Padded, Ragged, Sequence[Any], Floats3d])


def OnlineRNN(
    nO: Optional[int] = None,
    nI: Optional[int] = None,
    *,
    cell: Union[str, Cell] = "torch-gru",
    activation: str = "tanh",
    depth: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
    learning: Literal["d-rtrl", "bptt"] = "d-rtrl",
    traces: How = "auto",
    vjp_method: VjpMethod = "single-step",
    window: Optional[int] = None,
    normalize_matrix_spectrum: bool = False,
    chrono: Optional[int] = None,
) -> Model[SequencesT, SequencesT]:
    """A recurrent layer. Registered as `thinc-torchopt.OnlineRNN.v1`.

    Input and output are Padded, Ragged, a list of arrays, or one array (T, B, nI), in float32.

    nO (int): Width of the output; with both directions, half of it for each.
    nI (int): Width of the input.
    cell (str | Cell): "torch-gru", "torch-lstm", "rnn", "gru", "mgu", "lstm", "indrnn" or "mingru", or in Python a cell
        of your own.
    activation (str): "tanh", "relu", "sigmoid" or "linear".
    depth (int): Number of layers, each on the output of the one before.
    bidirectional (bool): Also read backwards. Only for complete texts.
    dropout (float): Of the input of each layer, in training. spaCy replaces it by [training] dropout.
    learning ("d-rtrl" | "bptt"): By eligibility traces, or by back-propagation through time. For "indrnn" and "mingru"
        both give the same gradients of their weights; "bptt" also gives the layer below its whole gradient, and for
        complete texts it is as fast and needs no more memory than "adjoint".
    traces ("forward" | "adjoint" | "auto"): Only with "d-rtrl". "forward": traces. "adjoint": the same gradient from
        the states of all steps, which is faster. "auto": whichever takes less memory.
    vjp_method ("single-step" | "multi-step"): Only with "d-rtrl". "multi-step": back-propagation through time inside
        windows of `window` steps, traces before them.
    window (int | None): Steps, with "multi-step".
    normalize_matrix_spectrum (bool): Only with "d-rtrl". Keep traces from exploding, with a biased gradient.
    chrono (int | None): Begin with biases with which the units remember up to so many steps, for cells with a gate that
        keeps the state: all but "rnn" and "indrnn".
    RAISES (ConfigError): An invalid value, or two that exclude each other.
    """
    where = Section("the block of OnlineRNN")
    made = make_cell(cell, activation, where)
    method = Method(vjp_method, window, normalize_matrix_spectrum=normalize_matrix_spectrum, traces=traces)
    where.choice("learning", learning, ("d-rtrl", "bptt"))
    depth = where.whole("depth", depth, at_least=1)
    nO, nI = (None if n is None else where.whole(name, n, at_least=1) for name, n in (("nO", nO), ("nI", nI)))
    where.number("dropout", dropout, at_most=1.0)
    where.flag("bidirectional", bidirectional)
    method.check(where)
    if chrono is not None:
        where.whole("chrono", chrono, at_least=3)
        with_bias = {relation.name for relation in made.relations if len(relation.weight_names) > 1}
        if not made.memory_gates or not made.memory_gates.keys() <= with_bias:
            where.refuse(
                "chrono", "null for a cell without a gate that keeps the state, or whose gate has no bias", chrono
            )
    if learning == "bptt" and method != Method(traces=traces):
        where.refuse("learning", '"d-rtrl" with vjp_method, window or normalize_matrix_spectrum', learning)
    if bidirectional and nO is not None and nO % 2:
        where.refuse("nO", "an even number with bidirectional = true, half for each direction", nO)
    if learning == "d-rtrl":
        warn_of_truncation(made.truncated or (), where)
    layers = []
    for i in range(depth):
        width = nI if i == 0 else nO
        of_layer = Settings(made, learning, method, is_top=i == depth - 1, chrono=chrono)
        if bidirectional:
            half = None if nO is None else nO // 2
            ways = [
                one_way(replace(of_layer, reverse=reverse), half, width, dropout=dropout) for reverse in (False, True)
            ]
            layers.append(both_ways(*ways))
        else:
            layers.append(one_way(of_layer, nO, width, dropout=dropout))
    return with_padded(layers[0] if depth == 1 else chain(*layers))


def OnlineRNNEncoder(
    width: int,
    depth: int = 1,
    *,
    cell: str = "torch-gru",
    activation: str = "tanh",
    bidirectional: bool = False,
    dropout: float = 0.0,
    learning: Literal["d-rtrl", "bptt"] = "d-rtrl",
    traces: How = "auto",
    vjp_method: VjpMethod = "single-step",
    window: Optional[int] = None,
    normalize_matrix_spectrum: bool = False,
    chrono: Optional[int] = None,
) -> Model[List[Floats2d], List[Floats2d]]:
    """OnlineRNN for the `encode` slot of `spacy.Tok2Vec.v2`. Registered as `thinc-torchopt.OnlineRNNEncoder.v1`.

    width (int): Of input and output.
    depth (int): Number of layers. 0: none. Others: As in `OnlineRNN`.
    """
    where = Section("the block of OnlineRNNEncoder")
    width = where.whole("width", width, at_least=1)
    if where.whole("depth", depth) == 0:
        return noop()
    return OnlineRNN(
        width,
        width,
        depth=depth,
        cell=cell,
        activation=activation,
        bidirectional=bidirectional,
        dropout=dropout,
        learning=learning,
        traces=traces,
        vjp_method=vjp_method,
        window=window,
        normalize_matrix_spectrum=normalize_matrix_spectrum,
        chrono=chrono,
    )


def copy_torch_weights(model: Model, module: torch.nn.RNNBase) -> None:
    """Copy the weights of torch.nn.GRU, LSTM or RNN to an initialized OnlineRNN. The outputs are then the same.

    RAISES (ConfigError): Another cell, activation, depth, or number of directions. (ShapeError): Another width.
    """
    where = Section("copy_torch_weights")
    nodes = recurrent_nodes(model)
    directions = 2 if module.bidirectional else 1
    ours = 2 if any(node.attrs[SETTINGS].reverse for node in nodes) else 1
    if (len(nodes) // ours, ours) != (module.num_layers, directions) or module.proj_size:
        found = f"{module.num_layers} layers with {directions} directions, proj_size {module.proj_size}"
        where.refuse("module", f"one with {len(nodes) // ours} layers, {ours} directions, and proj_size 0", found)
    activation = getattr(module, "nonlinearity", "tanh")
    for i, node in enumerate(nodes):
        if (own := getattr(node.attrs[SETTINGS].cell, "activation", None)) != activation:
            where.refuse("module", f"one with the activation of the model, {own!r}", activation)
        params = _params_from_torch(module, i // directions, reverse=bool(i % directions))
        if set(params) != set(node.param_names):
            where.refuse("module", f"one with the cell of the model, '{node.name}'", type(module).__name__)
        for name, tensor in params.items():
            if tensor.shape != node.get_param(name).shape:
                raise ShapeError(
                    f"Can't copy {name} of layer {i // directions}: expected shape {node.get_param(name).shape}, found "
                    f"{tuple(tensor.shape)}."
                )
    for i, node in enumerate(nodes):
        for name, tensor in _params_from_torch(module, i // directions, reverse=bool(i % directions)).items():
            as_tensor(node.get_param(name)).copy_(tensor)


# The gates in torch's order.
_GATES = {torch.nn.GRU: "rzn", torch.nn.LSTM: "ifgo", torch.nn.RNN: ("",)}


def _params_from_torch(module: torch.nn.RNNBase, layer: int, *, reverse: bool) -> Mapping[str, Tensor]:
    """The params of one layer and direction of a torch module, by our names. torch has two biases for each gate; only
    their sum matters, except for the last gate of a GRU.
    """
    suffix = f"_l{layer}" + "_reverse" * reverse
    gates = next(gates for cls, gates in _GATES.items() if isinstance(module, cls))
    parts = {}
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        tensor = getattr(module, name + suffix, torch.zeros(len(gates) * module.hidden_size)).detach()
        parts[name] = tensor.chunk(len(gates))
    found: dict[str, Tensor] = {}
    for i, gate in enumerate(gates):
        end = f"_{gate}" if gate else ""
        W, U, b_x, b_h = (parts[name][i] for name in parts)
        if gate == "n":
            found |= {"W_n": W, "b_n": b_x, "U_hn": U, "b_hn": b_h}
        else:
            found |= {f"W{end}": W, f"U{end}": U, f"b{end}": b_x + b_h}
    return found
