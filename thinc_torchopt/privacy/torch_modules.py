"""Records of torch modules, by hooks: `torch.nn.Linear`, `LayerNorm` and `Embedding`, and modules made of them.

Their params need no gradients meanwhile, so that torch computes none. The output of each has a hook that gets its
gradient in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Embedding, LayerNorm, Linear, Module, Parameter

from ..errors import ParamError
from .records import Lookup, Product, Record, Terms
from .rows import Rows

if TYPE_CHECKING:
    from .book import Book


def check_module(where: str, module: Module) -> None:
    """RAISES (ParamError): A module with params has no form, or two share a param. where (str): The layer's name."""
    seen: dict[Parameter, str] = {}
    for path, part in module.named_modules():
        name = f"'{path or type(module).__name__}' ({type(part).__name__}) in layer '{where}'"
        params = [param for param in part.parameters(recurse=False) if param.requires_grad]
        if params and type(part) not in (Linear, LayerNorm, Embedding):
            raise ParamError(
                f"Can't clip the gradient of each example: expected torch modules made of Linear, LayerNorm and "
                f"Embedding, found {name}. Freeze its component (frozen_components), or train without privacy."
            )
        if isinstance(part, Embedding) and (part.max_norm is not None or part.scale_grad_by_freq):
            raise ParamError(
                f"Can't clip the gradient of each example: {name} has max_norm or scale_grad_by_freq, which depend on "
                "the whole batch. Remove them."
            )
        for param in params:
            if param.dtype != torch.float32:
                raise ParamError(
                    f"Can't clip the gradient of each example: expected params of float32, found {param.dtype} in "
                    f"{name}. Norms need that precision."
                )
            if param in seen:
                raise ParamError(
                    f"Can't clip the gradient of each example: {name} shares a param with '{seen[param]}', and the "
                    "parts of its gradient can't be added up. Use two params."
                )
            seen[param] = path


@contextmanager
def recording(book: Book, where: str, module: Module, rows: Rows) -> Iterator[None]:
    """Inside, a forward pass of a module is recorded. rows (Rows): Those of its input."""

    def note(part: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        X = inputs[0].detach()
        if output.shape[0] != len(rows) or output.ndim != 2:
            raise ParamError(
                f"Can't clip the gradient of each example: {type(part).__name__} in layer '{where}' has an output of "
                f"shape {tuple(output.shape)}, expected one row for each of {len(rows)} rows of the layer's input. Its "
                "module mixes rows, or changes their order."
            )
        if not output.requires_grad:
            output.requires_grad_()
        output.register_hook(lambda dY: book.records_of_module(part, rows, X, dY.detach()))

    parts = [part for part in module.modules() if any(book.trains(param) for param in part.parameters(recurse=False))]
    with ExitStack() as stack:
        for part in parts:
            stack.callback(part.register_forward_hook(note).remove)
        yield


def records(part: Any, rows: Rows, X: Any, dY: Tensor) -> Iterator[tuple[Any, Record]]:
    """The records of one module's params."""
    if isinstance(part, Embedding):
        if part.padding_idx is not None:
            dY = dY * (part.padding_idx != X)[:, None]
        yield part.weight, Lookup(rows, X.reshape(-1, 1), dY, len(part.weight))
        return
    if isinstance(part, Linear):
        yield part.weight, Product(rows, X.to(dY.dtype), dY)
    elif part.weight is not None:
        normed = torch.nn.functional.layer_norm(X, part.normalized_shape, eps=part.eps)
        yield part.weight, Terms(rows, dY * normed)
    if part.bias is not None:
        yield part.bias, Terms(rows, dY)
