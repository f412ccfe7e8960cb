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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Optional

import torch
from thinc.api import Model, PyTorchShim, Shim

from .errors import ConfigError
from .types import Key

_PLAIN = re.compile(r"[A-Za-z0-9_+-]+")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_+-]+")
_BIAS = re.compile(r"(.*_)?bias(_.*)?")  # torch: bias, in_proj_bias, bias_ih_l0


class NamedParam(NamedTuple):
    """What a walk over a model finds: where a param is, and what it is called."""

    name: str
    key: Key
    owner: Any  # thinc's node or shim
    is_bias_or_norm: bool = False
    param: Optional[torch.nn.Parameter] = None  # torch's


def walk(model: Model, prefix: str) -> Iterator[NamedParam]:
    """Find all params below a model.

    model (Model): The root.
    prefix (str): What names begin with: the component's name.
    YIELDS (NamedParam): Every param that a node declares, with or without a value, and every torch param. Names are unique; a torch param
        that stands in several places of its module has several.
    """
    taken: set[str] = set()
    for node, path in _paths(model, clean(prefix)):
        for param_name in node.param_names:
            is_bias_or_norm = param_name == "b" or node.name == "layernorm"
            yield NamedParam(unique(f"{path}/{clean(param_name)}", taken), (node.id, param_name), node, is_bias_or_norm)
        for shim in node.shims:
            for param_name, param in torch_params(shim, remove_duplicate=False):
                name = "/".join([path, *map(clean, param_name.split("."))])
                yield NamedParam(unique(name, taken), id(param), shim, _is_torch_bias_or_norm(shim._model, param_name), param)


def shim_paths(model: Model, prefix: str) -> Iterator[tuple[str, Shim]]:
    """Every shim below a model with its path, whose last part tells it from others of its node."""
    for node, path in _paths(model, clean(prefix)):
        for i, shim in enumerate(node.shims):
            yield path if len(node.shims) == 1 else f"{path}/{i}", shim


def torch_params(shim: Shim, *, remove_duplicate: bool = True) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The params of the torch module in a shim, if there is one. remove_duplicate (bool): Each once, by its first name."""
    if isinstance(shim, PyTorchShim) and isinstance(shim._model, torch.nn.Module):
        yield from shim._model.named_parameters(remove_duplicate=remove_duplicate)


def clean(part: str) -> str:
    """One part of a name, without the characters that a config section can't hold."""
    return _FORBIDDEN.sub("_", part) or "_"


class Pattern:
    """A pattern over names: called with a name, it says whether the name matches.

    text (str): A shell glob over the whole name, e.g. "transformer/*", "*/bias"; or "re:" and a regular expression that is searched for
        in the name, e.g. "re:layer/[0-3]/".
    where (str): Config path of the pattern, for errors.
    RAISES (ConfigError): The regular expression is none.
    """

    def __init__(self, text: str, where: str):
        self.text = text
        self.where = where
        self._regex: Optional[re.Pattern[str]] = None
        if text.startswith("re:"):
            try:
                self._regex = re.compile(text.removeprefix("re:"))
            except re.error as error:
                raise ConfigError(f"Can't use pattern '{text}' in {where}: expected a regular expression behind 're:'; {error}.") from error

    def __call__(self, name: str) -> bool:
        return fnmatchcase(name, self.text) if self._regex is None else self._regex.search(name) is not None

    def check(self, names: Sequence[str]) -> None:
        """Check that there is a name that matches.

        names (Sequence[str]): All names that there are.
        RAISES (ConfigError): There is none.
        """
        if not any(map(self, names)):
            near = get_close_matches(self.text, names, n=3, cutoff=0.3) or list(names[:3])
            raise ConfigError(
                f"Can't use pattern '{self.text}' in {self.where}: it matches none of {len(names)} params. Names start with the "
                f"component's name and are parted by '/'. Near ones: {', '.join(near)}. List them: spacy torchopt params."
            )


def matches_any(patterns: Sequence[Pattern]) -> Callable[[str], bool]:
    """Whether a name matches one of several patterns."""
    return lambda name: any(pattern(name) for pattern in patterns)


def layers_of(names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """In which layer each param is.

    A component's layers are its numbered parts, e.g. `encoder/layer/0` to `encoder/layer/11`; of several such stacks the one with most
    params. Embeddings count as layer 0, what stands above the layers as their number, the depth.

    names (Iterable[str]): All names that there are.
    RETURNS (dict[str, tuple[int, int]]): Layer and depth of each name. Components without layers are left out.
    """
    of_component: dict[str, list[str]] = {}
    for name in names:
        of_component.setdefault(name.partition("/")[0], []).append(name)
    found: dict[str, tuple[int, int]] = {}
    for members in of_component.values():
        placed = {name: _place_in_stack(name) for name in members}
        sizes = Counter(place[0] for place in placed.values() if place is not None)
        if sizes:
            stack = sizes.most_common(1)[0][0]
            layers = {name: place[1] for name, place in placed.items() if place is not None and place[0] == stack}
            depth = 1 + max(layers.values())
            for name in members:
                found[name] = layers.get(name, 0 if "embed" in name.lower() else depth), depth
    return found


def _place_in_stack(name: str) -> Optional[tuple[str, int]]:
    """The path of the numbered parts to which a param belongs, and its number there."""
    parts = name.split("/")
    for i, part in enumerate(parts[:-1]):
        if "embed" in part.lower():
            return None
        if i and part.isdigit():
            return "/".join(parts[:i]), int(part)
    return None


def _is_torch_bias_or_norm(module: torch.nn.Module, name: str) -> bool:
    owner, _, last = name.rpartition(".")
    return _BIAS.fullmatch(last) is not None or "norm" in type(module.get_submodule(owner)).__name__.lower()


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
