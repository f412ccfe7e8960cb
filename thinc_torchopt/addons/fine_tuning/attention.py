"""How a transformer computes its attention: by torch's fused function ("sdpa"), step by step ("eager"), or another way
that the installed Hugging Face has. They differ in rounding, time and memory.

The choice holds for a run. It is not saved with the model: whoever loads the model chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import torch
from thinc.api import PyTorchShim

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
