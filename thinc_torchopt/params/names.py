"""The lasting names of params.

*key*: thinc's `(node.id, name)`, or the `id` of a torch param. Lives in this process only.
*name*: `component/.../param`, for example `ner/tok2vec/encode/2/maxout/W`. The same in every process, after save and
load, and after labels were added.

From the root of a component's model, each step down adds the name of the layer, with two exceptions:

- A layer that an outer layer refers to (`tok2vec`, `encode`, `output_layer`) follows directly after that layer's name.
- A layer that only combines others (`chain`, `residual`, `with_array`: their names hold `>>` or brackets) has its index
  among its siblings as its name, or none if no sibling has params. So has a wrapper around a torch module.

Torch's dots become slashes.

Other characters than letters, digits, `_`, `-` and `+` are escaped in the name of a component, so different names stay
different: `ä` is `+e4+`. In names of layers and params they become `_`.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import torch
from thinc.api import Model, PyTorchShim, Shim

from ..host import module_of
from ..types import Key
from .paths import paths_of
from .spelling import clean, unique

_THINC_BIAS = re.compile(r"b(_.*)?")  # thinc: b; layers with several: b_z, b_r
_BIAS = re.compile(r"(.*_)?bias(_.*)?")  # torch: bias, in_proj_bias, bias_ih_l0


class NamedParam(NamedTuple):
    """A param that a walk over a model finds, with its place and its name."""

    name: str
    key: Key
    owner: Any  # thinc's node or shim
    is_bias_or_norm: bool = False
    is_embedding: bool = False
    param: Optional[torch.nn.Parameter] = None  # torch's

    @property
    def values(self) -> Any:
        """Its array or tensor. None: none yet."""
        if self.param is not None:
            return None if torch.nn.parameter.is_lazy(self.param) else self.param
        name = self.key[1]  # type: ignore[index]
        return self.owner.get_param(name) if self.owner.has_param(name) else None


def walk(model: Model, prefix: str) -> Iterator[NamedParam]:
    """Find all params below a model.

    model (Model): The root.
    prefix (str): The component's name, the first part of all names.
    YIELDS (NamedParam): Every param that a node declares, with or without a value, and every torch param. Names are
        unique; a torch param that is used in several places of its module has several.
    """
    taken: set[str] = set()
    for node, path in paths_of(model, clean(prefix)):
        for param_name in node.param_names:
            is_bias_or_norm = _THINC_BIAS.fullmatch(param_name) is not None or node.name == "layernorm"
            is_embedding = "embed" in node.name or node.name == "static_vectors"
            yield NamedParam(
                unique(f"{path}/{clean(param_name)}", taken), (node.id, param_name), node, is_bias_or_norm, is_embedding
            )
        for shim in node.shims:
            embeddings = _torch_embeddings(shim)
            for param_name, param in torch_params(shim, remove_duplicate=False):
                name = unique("/".join([path, *map(clean, param_name.split("."))]), taken)
                is_bias_or_norm = _is_torch_bias_or_norm(module_of(shim), param_name, param)
                yield NamedParam(name, id(param), shim, is_bias_or_norm, id(param) in embeddings, param)


def shim_paths(model: Model, prefix: str) -> Iterator[tuple[str, Shim]]:
    """Every shim below a model with its path, which is unique among the shims of its node."""
    if not any(node.shims for node in model.walk()):
        return  # without the paths, which take longer
    for node, path in paths_of(model, clean(prefix)):
        for i, shim in enumerate(node.shims):
            yield path if len(node.shims) == 1 else f"{path}/{i}", shim


def torch_params(shim: Shim, *, remove_duplicate: bool = True) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The params of the torch module in a shim, if any. remove_duplicate (bool): Each once, by its first name."""
    if isinstance(shim, PyTorchShim) and module_of(shim) is not None:
        yield from module_of(shim).named_parameters(remove_duplicate=remove_duplicate)


def _is_torch_bias_or_norm(module: torch.nn.Module, name: str, param: torch.nn.Parameter) -> bool:
    owner, _, last = name.rpartition(".")
    if "norm" in type(module.get_submodule(owner)).__name__.lower():
        return True
    # Matrices of biases, one for each head and distance, are learned like weights. torch's own biases are (1, 1, width)
    # at most.
    is_matrix = not torch.nn.parameter.is_lazy(param) and sum(size > 1 for size in param.shape) > 1
    return _BIAS.fullmatch(last) is not None and not is_matrix


def _torch_embeddings(shim: Shim) -> set[int]:
    """The `id` of each embedding in the torch module of a shim.

    These are the params of torch's embedding layers, under all names if they are tied; and single vectors, such as the
    class token and positions of a ViT, beside a stack of layers, with a first dimension of 1 for the batch.
    """
    if not isinstance(shim, PyTorchShim) or module_of(shim) is None:
        return set()
    found = set()
    for module in module_of(shim).modules():
        of_embedding = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        for param in module.parameters(recurse=False):
            if of_embedding or (_is_token(param) and _holds_layers(module)):
                found.add(id(param))
    return found


def _is_token(param: torch.nn.Parameter) -> bool:
    return not torch.nn.parameter.is_lazy(param) and param.dim() > 2 and param.shape[0] == 1


def _holds_layers(module: torch.nn.Module) -> bool:
    return any(isinstance(below, (torch.nn.ModuleList, torch.nn.Sequential)) for below in module.modules())
