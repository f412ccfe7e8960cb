"""Gradient checkpointing: the backward pass computes each layer of a transformer again, so none of its inner values are
kept. That takes about a third more time. Gradients stay the same: dropout draws the same numbers again.

PAPER: Chen, Xu, Zhang, Guestrin (2016): Training Deep Nets with Sublinear Memory Cost. https://arxiv.org/abs/1604.06174
SOURCE: torch.utils.checkpoint, without reentrance; Hugging Face's `gradient_checkpointing_enable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ...core.checks import Section
from .settings import BLOCK


def check_checkpointing(name: str, module: torch.nn.Module) -> None:
    """RAISES (ConfigError): The layers of a transformer can't be computed again. name (str): Of its component."""
    found = ""
    if isinstance(module, torch.jit.ScriptModule):
        found = "compiled by TorchScript"
    elif hasattr(module, "gradient_checkpointing_enable"):
        if not module.supports_gradient_checkpointing:
            found = f"a {type(module).__name__}, for which Hugging Face has none"
    elif not layers_of(module):
        found = f"a {type(module).__name__} without layers"
    if found:
        Section(BLOCK).refuse(
            "gradient_checkpointing", f"false for a model like that of '{name}'", True, f"It is {found}."
        )


@contextmanager
def checkpointing(module: Any) -> Iterator[None]:
    """Inside, the training passes of a transformer keep only what its layers read. Evaluations are as before.

    module (torch.nn.Module): Of Hugging Face, or of curated transformers. See `check_checkpointing`.
    """
    if hasattr(module, "gradient_checkpointing_enable"):
        was_on = module.is_gradient_checkpointing
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        try:
            yield
        finally:
            if not was_on:
                module.gradient_checkpointing_disable()
        return
    with ExitStack() as stack:
        for layer in layers_of(module):
            stack.enter_context(with_forward(layer, partial(_checkpointed, layer)))
        yield


def _checkpointed(layer: torch.nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if layer.training and torch.is_grad_enabled():
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    return forward(*args, **kwargs)


def layers_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of a transformer: the members of its outermost lists of modules. Layers that share their params, as in
    ALBERT, are one.
    """
    found: list[torch.nn.Module] = []
    for child in module.children():
        found += list(child) if isinstance(child, torch.nn.ModuleList) else layers_of(child)
    return found


@contextmanager
def with_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside, a module computes by another function. forward (Callable): Gets the module's own, and its arguments."""
    before = module.forward
    was_set = "forward" in vars(module)
    module.forward = partial(forward, before)
    try:
        yield
    finally:
        if was_set:
            module.forward = before
        else:
            del module.forward
