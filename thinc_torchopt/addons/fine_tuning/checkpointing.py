"""Gradient checkpointing: the backward pass computes layers of a transformer again, so none of their inner values are
kept. For all layers, that takes about a third more time. Gradients stay the same: dropout draws the same numbers again.

The lowest layers come last in the backward pass: what the layers above have kept is free by then.

PAPER: Chen, Xu, Zhang, Guestrin (2016): Training Deep Nets with Sublinear Memory Cost. https://arxiv.org/abs/1604.06174
SOURCE: torch.utils.checkpoint, without reentrance. Hugging Face's own is for all layers or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ...core.checks import Section
from ...core.host import swap
from .transformers import BLOCK


def check_checkpointing(chosen: bool | int, name: str, module: torch.nn.Module, frozen: int = 0) -> None:
    """Check that layers of a transformer can be computed again.

    chosen (bool | int): `gradient_checkpointing`. name (str): Of the component.
    frozen (int): How many layers are not trained.
    RAISES (ConfigError): They can't, or there are fewer.
    """
    found = ""
    if isinstance(module, torch.jit.ScriptModule):
        found = "compiled by TorchScript"
    elif not getattr(module, "supports_gradient_checkpointing", True):
        found = f"a {type(module).__name__}, for which Hugging Face has none"
    elif not layers_of(module):
        found = f"a {type(module).__name__} without layers"
    section = Section(BLOCK)
    if found:
        section.refuse("gradient_checkpointing", f"false for a model like that of '{name}'", chosen, f"It is {found}.")
    most = max(0, len(layers_of(module)) - frozen)
    if chosen is not True and chosen > most:
        trained = " that are trained" if frozen else ""
        section.refuse(
            "gradient_checkpointing", f"true, or at most {most}, the number of layers of '{name}'{trained}", chosen
        )


@contextmanager
def checkpointing(chosen: bool | int, module: torch.nn.Module) -> Iterator[None]:
    """Inside, the training passes of a transformer keep only what the chosen layers read. Evaluations are as before.

    chosen (bool | int), module (torch.nn.Module): As for `check_checkpointing`.
    """
    layers = layers_of(module)
    with ExitStack() as stack:
        for layer in layers:
            is_chosen = partial(_is_chosen, layer, layers, chosen)
            stack.callback(swap(layer, "forward", partial(_checkpointed, layer, is_chosen, layer.forward)))
        yield


def _is_chosen(layer: torch.nn.Module, layers: Sequence[torch.nn.Module], at_most: bool | int) -> bool:
    """Whether a layer is one of the lowest that are trained now. at_most (bool | int): How many. True: all layers."""
    if at_most is True:
        return True
    trained = (one for one in layers if any(param.requires_grad for param in one.parameters()))
    return any(one is layer for one in islice(trained, at_most))


def _checkpointed(
    layer: torch.nn.Module, is_chosen: Callable[[], bool], forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    if not (layer.training and torch.is_grad_enabled() and is_chosen()):
        return forward(*args, **kwargs)
    args, kwargs = tuple(map(_no_cache, args)), {key: _no_cache(value) for key, value in kwargs.items()}
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _no_cache(value: Any) -> Any:
    """Hugging Face's decoders put keys into a cache, for a next pass. Computed again, they would be there twice."""
    return None if hasattr(value, "get_seq_length") else value


def layers_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of a transformer: the members of its outermost lists of modules. Layers that share their params, as in
    ALBERT, are one.
    """
    found: list[torch.nn.Module] = []
    for child in module.children():
        found += list(child) if isinstance(child, torch.nn.ModuleList) else layers_of(child)
    return found
