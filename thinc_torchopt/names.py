"""The lasting names of params.

*key*: thinc's `(node.id, name)`, or the `id` of a torch param. Lives in this process only.
*name*: `component/.../param`, for example `ner/tok2vec/encode/2/maxout/W`. The same in every process, after save and load,
and after labels were added.

How a name comes about. From the root of a component's model, each step down adds the name of the layer. It is shortened so:

- A layer to which an outer layer holds a ref (`tok2vec`, `encode`, `output_layer`) starts anew behind the outer layer's name.
- A layer that only combines others (`chain`, `residual`, `with_array`: their names hold `>>` or brackets) is told by its index among
  its siblings, or left out where no sibling has params. So is a wrapper around a torch module.

Torch's dots become slashes.
"""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Optional

import torch
from thinc.api import Model, PyTorchShim, Shim

from .errors import ConfigError
from .types import Key

_PLAIN = re.compile(r"[A-Za-z0-9_+-]+")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_+-]+")


class NamedParam(NamedTuple):
    """What a walk over a model finds: where a param is, and what it is called."""

    name: str
    key: Key
    owner: Any  # thinc's node or shim


def walk(model: Model, prefix: str) -> Iterator[NamedParam]:
    """Find all params below a model.

    model (Model): The root.
    prefix (str): What names begin with: the component's name.
    YIELDS (NamedParam): Every param that a node declares, with or without a value, and every torch param. Names are unique.
    """
    taken: set[str] = set()
    for node, path in _paths(model, clean(prefix)):
        for param_name in node.param_names:
            yield NamedParam(unique(f"{path}/{clean(param_name)}", taken), (node.id, param_name), node)
        for shim in node.shims:
            for param_name, param in torch_params(shim):
                name = "/".join([path, *map(clean, param_name.split("."))])
                yield NamedParam(unique(name, taken), id(param), shim)


def shim_paths(model: Model, prefix: str) -> Iterator[tuple[str, Shim]]:
    """Every shim below a model with its path, whose last part tells it from others of its node."""
    for node, path in _paths(model, clean(prefix)):
        for i, shim in enumerate(node.shims):
            yield path if len(node.shims) == 1 else f"{path}/{i}", shim


def torch_params(shim: Shim) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The params of the torch module in a shim, if there is one."""
    if isinstance(shim, PyTorchShim) and isinstance(shim._model, torch.nn.Module):
        yield from shim._model.named_parameters()


def clean(part: str) -> str:
    """One part of a name, without the characters that a config section can't hold."""
    return _FORBIDDEN.sub("_", part) or "_"


def match(patterns: Sequence[str], names: Sequence[str], *, where: str) -> set[str]:
    """The names that match at least one pattern.

    patterns (Sequence[str]): Shell globs, e.g. "transformer/*", "*/bias".
    names (Sequence[str]): All names that there are.
    where (str): Config path of the patterns, for the error.
    RAISES (ConfigError): A pattern that matches nothing.
    """
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            near = get_close_matches(pattern, names, n=3, cutoff=0.3) or list(names[:3])
            raise ConfigError(
                f"Can't use pattern '{pattern}' in {where}: it matches none of {len(names)} params. Names start with the "
                f"component's name and are parted by '/'. Near ones: {', '.join(near)}."
            )
        found |= matched
    return found


def _paths(root: Model, prefix: str) -> Iterator[tuple[Model, str]]:
    """Each node below the root once, outer ones first, with its path."""
    bearing = _bearing_nodes(root)
    paths: dict[int, str] = {id(root): prefix}
    by_ref: dict[int, str] = {}
    queue = [root]
    for node in queue:
        path = paths[id(node)]
        yield node, path
        for ref in sorted(node.ref_names):
            target = node.maybe_get_ref(ref)
            if target is not None and id(target) not in by_ref:
                short = f"{_without_indices(path)}/{clean(ref)}"
                by_ref[id(target)] = f"{path}/{clean(ref)}" if short in by_ref.values() else short
        siblings = [layer for layer in node.layers if id(layer) in bearing]
        for i, layer in enumerate(node.layers):
            if id(layer) in paths:
                continue
            part = _part(layer, i, siblings, alone=len(siblings) < 2 and not node.param_names and not node.shims)
            paths[id(layer)] = by_ref.get(id(layer)) or (f"{path}/{part}" if part else path)
            queue.append(layer)


def _without_indices(path: str) -> str:
    """A path up to its last part that is no index."""
    parts = path.split("/")
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    return "/".join(parts)


def _part(layer: Model, index: int, siblings: list[Model], *, alone: bool) -> Optional[str]:
    """What a layer adds to the path of its params."""
    if not _PLAIN.fullmatch(layer.name):
        return None if alone else str(index)
    if alone and layer.shims:
        return None
    same = sum(sibling.name == layer.name for sibling in siblings)
    return layer.name if same < 2 else f"{layer.name}-{index}"


def _bearing_nodes(root: Model) -> set[int]:
    """Ids of the nodes that have params, their own or below them."""
    bearing: set[int] = set()
    for node in root.walk(order="dfs_post"):
        if node.param_names or node.shims or any(id(layer) in bearing for layer in node.layers):
            bearing.add(id(node))
    return bearing


def unique(name: str, taken: set[str]) -> str:
    """The name, or the name with a number behind it if it is taken. It is then."""
    candidate, n = name, 2
    while candidate in taken:
        candidate, n = f"{name}-{n}", n + 1
    taken.add(candidate)
    return candidate
