"""How a transformer computes its attention: by torch's fused function ("sdpa"), step by step ("eager"), or another way
that the installed Hugging Face has. They differ in rounding, time and memory.

The choice holds for a run. It is not saved with the model: whoever loads the model chooses.

*Gradient checkpointing*: the backward pass computes layers of a transformer again, so none of their inner values are
kept. For all layers, that takes about a third more time. Gradients stay the same: dropout draws the same numbers again.
The lowest layers come last in the backward pass: what the layers above have kept is free by then.

PAPER: Chen, Xu, Zhang, Guestrin (2016): Training Deep Nets with Sublinear Memory Cost. https://arxiv.org/abs/1604.06174
SOURCE: torch.utils.checkpoint, without reentrance. Hugging Face's own is for all layers or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from itertools import islice
from typing import Any, Final

import torch
from thinc.api import PyTorchShim
from torch.utils.checkpoint import checkpoint

from ...core.checks import Section
from ...core.host import attention_of, module_of, swap, swap_module
from .transformers import BLOCK

_OFTEN: Final = ("eager", "sdpa", "flash_attention_2", "flex_attention")


def check_attention(name: str, shim: PyTorchShim, attention: str) -> None:
    """RAISES (ConfigError): A transformer has no such attention. name (str): Of its component."""
    module = module_of(shim)
    if _is_of_hugging_face(module):
        if (why := _why_not(shim, attention)) is None:
            return
        known = [one for one in _OFTEN if _why_not(shim, one) is None]
        package = f"{type(module).__name__} in transformers {version('transformers')}. {why}"
    else:
        known = ["eager", "sdpa"] if _products_of(module) else []
        if attention in known:
            return
        package = f"{type(module).__name__}."
    expected = " or ".join(f'"{one}"' for one in known) or "null"
    Section(BLOCK).refuse("attention", expected, attention, f"This is for '{name}': {package}")


@contextmanager
def attending(shim: PyTorchShim, attention: str) -> Iterator[None]:
    """Inside, a transformer computes its attention in this way, in evaluations too. See `check_attention`."""
    module = module_of(shim)
    if not _is_of_hugging_face(module):
        with ExitStack() as stack:
            for product in _products_of(module) if attention == "sdpa" else ():
                stack.callback(swap(product, "forward", partial(_fused(product), product.forward)))
            yield
        return
    if attention_of(module) == attention:
        yield
        return
    put_back = swap_module(shim, twin := _twin_of(shim, attention))
    try:
        yield
    finally:
        module.train(twin.training)
        put_back()


# ---------------------------------------------------------------------- Hugging Face


def _is_of_hugging_face(module: torch.nn.Module) -> bool:
    return attention_of(module) is not None


def _why_not(shim: PyTorchShim, attention: str) -> str | None:
    """Why it can't be, in a sentence. None: it can."""
    try:
        _built(shim, attention)
    except (ValueError, ImportError) as error:
        return " ".join(str(error).split()).partition(". ")[0].rstrip(".") + "."
    return None


def _built(shim: Any, attention: str) -> Any:
    """A model of the same config, without values."""
    config = module_of(shim).config
    with torch.device("meta"):
        return shim.model_cls.from_config(type(config).from_dict(config.to_dict()), attn_implementation=attention)


def _twin_of(shim: PyTorchShim, attention: str) -> torch.nn.Module:
    """A model that attends in another way, and has the very params and buffers of the shim's."""
    module, twin = module_of(shim), _built(shim, attention)
    for path, part in module.named_modules():
        other = twin.get_submodule(path)
        for key, value in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
            setattr(other, key, value)
    return twin.train(module.training)


# ---------------------------------------------------------------------- curated transformers


def _products_of(module: torch.nn.Module) -> list[Any]:
    return [part for part in module.modules() if type(part).__name__ == "ScaledDotProductAttention"]


def _fused(product: Any) -> Callable[..., torch.Tensor]:
    """SOURCE: `ScaledDotProductAttention` of curated-transformers 0.1.1 (models/attention.py) and 2.0.1
    (layers/attention.py), whose dropout is that of the result.
    """

    def forward(before: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        if args:
            key, query, value, attention_mask = args
            mask = attention_mask.bool_mask[:, None, None, :]
        elif kwargs["use_causal_mask"] or product.linear_biases is not None:
            return before(**kwargs)
        else:
            query, key, value = kwargs["query"], kwargs["key"], kwargs["value"]
            mask = kwargs["attention_mask"].bool_mask
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        dropped: torch.Tensor = product.dropout(found)
        return dropped

    return forward


# ---------------------------------------------------------------------- gradient checkpointing


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
