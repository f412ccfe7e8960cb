"""The lasting names of params.

*key*: thinc's `(node.id, name)`, or the `id` of a torch param. Lives in this process only.
*name*: `component/.../param`, for example `ner/tok2vec/encode/2/maxout/W`. The same in every process, after save and load,
and after labels were added.

How a name comes about. From the root of a component's model, each step down adds the name of the layer. It is shortened so:

- A layer to which an outer layer holds a ref (`tok2vec`, `encode`, `output_layer`) starts anew behind the outer layer's name.
- A layer that only combines others (`chain`, `residual`, `with_array`: their names hold `>>` or brackets) is told by its index among
  its siblings, or left out where no sibling has params. So is a wrapper around a torch module.

Torch's dots become slashes.

Other characters than letters, digits, `_`, `-` and `+` are escaped in the name of a component, so that different names stay different: `ä`
is `+e4+`. In names of layers and params they are all `_`.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any, NamedTuple, Optional

import torch
from thinc.api import Model, PyTorchShim, Shim

from .errors import ConfigError
from .types import Key

_PLAIN = re.compile(r"[A-Za-z0-9_+-]+")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_+-]+")
_ESCAPED = re.compile(r"\+([0-9a-f]{2,5}|10[0-9a-f]{4})\+|^\+\+\Z")
_BIAS = re.compile(r"(.*_)?bias(_.*)?")  # torch: bias, in_proj_bias, bias_ih_l0
# A further stack of layers counts if its layers have at least this part of the params of those of the largest: a decoder, and not a head.
_PART_OF_LAYER = 0.5


class NamedParam(NamedTuple):
    """A param that a walk over a model finds: where it is, and its name."""

    name: str
    key: Key
    owner: Any  # thinc's node or shim
    is_bias_or_norm: bool = False
    is_embedding: bool = False
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
            is_embedding = "embed" in node.name or node.name == "static_vectors"
            yield NamedParam(unique(f"{path}/{clean(param_name)}", taken), (node.id, param_name), node, is_bias_or_norm, is_embedding)
        for shim in node.shims:
            embeddings = _torch_embeddings(shim)
            for param_name, param in torch_params(shim, remove_duplicate=False):
                name = unique("/".join([path, *map(clean, param_name.split("."))]), taken)
                is_bias_or_norm = _is_torch_bias_or_norm(shim._model, param_name, param)
                yield NamedParam(name, id(param), shim, is_bias_or_norm, id(param) in embeddings, param)


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


def escape(component: str) -> str:
    """A component's name as names of params begin: different ones stay different. One of allowed characters stays as it is.

    Every other character is its number between two `+`. Then `+` is escaped as well, and where a name looks as if it were escaped.
    """
    if _PLAIN.fullmatch(component) and not _ESCAPED.search(component):
        return component
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"+{ord(found[0]):02x}+", component) or "++"


def unescape(component: str) -> str:
    """What `escape` was given."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", component)


class Pattern:
    """A pattern over names: called with a name, it says whether the name matches. The component may stand in it as the user calls it.

    text (str): A shell glob over the whole name, e.g. "transformer/*", "*/bias"; or "re:" and a regular expression that is searched for
        in the name, e.g. "re:layer/[0-3]/".
    where (str): Config path of the pattern, for errors.
    RAISES (ConfigError): Not a valid regular expression.
    """

    def __init__(self, text: str, where: str):
        self.text = text
        self.where = where
        self._regex: Optional[re.Pattern[str]] = None
        if text.startswith("re:"):
            try:
                self._regex = re.compile(text.removeprefix("re:"))
            except re.error as error:
                raise ConfigError(
                    f"Can't use pattern '{text}' in {where}: expected a valid regular expression after 're:', found an error: {error}."
                ) from error

    def __call__(self, name: str) -> bool:
        component, *rest = name.split("/", 1)
        return self._matches(name) or ("+" in component and self._matches("/".join([unescape(component), *rest])))

    def _matches(self, name: str) -> bool:
        return fnmatchcase(name, self.text) if self._regex is None else self._regex.search(name) is not None

    def check(self, names: Sequence[str]) -> None:
        """Check that the pattern matches a name.

        names (Sequence[str]): All names.
        RAISES (ConfigError): No name matches.
        """
        if not any(map(self, names)):
            near = get_close_matches(self.text, names, n=3, cutoff=0.3) or list(names[:3])
            raise ConfigError(
                f"Can't use pattern '{self.text}' in {self.where}: it matches none of {len(names)} params. Names start with the "
                f"component's name, and their parts are separated by '/'. Similar names: {', '.join(near)}. List them: spacy torchopt "
                "params."
            )


def matches_any(patterns: Sequence[Pattern]) -> Callable[[str], bool]:
    """Whether a name matches one of several patterns."""
    return lambda name: any(pattern(name) for pattern in patterns)


def layers_of(names: Iterable[str], embeddings: Collection[str] = ()) -> dict[str, tuple[int, int]]:
    """In which layer each param is.

    A component's layers are its numbered parts, e.g. `encoder/layer/0` to `encoder/layer/11`; of several such stacks the one with most
    params, and those with layers like it: the other of an encoder and a decoder. Each stack counts for itself. Embeddings count as layer 0,
    what stands above the layers as their number, the depth; of the stack nearest to them, or the deepest.

    names (Iterable[str]): All names.
    embeddings (Collection[str]): Those of embeddings. So is what has "embed" in its name: the norm of the embeddings, for example.
    RETURNS (dict[str, tuple[int, int]]): Layer and depth of each name. Components without layers are left out.
    """
    of_component: dict[str, list[str]] = {}
    for name in names:
        of_component.setdefault(name.partition("/")[0], []).append(name)
    found: dict[str, tuple[int, int]] = {}
    for members in of_component.values():
        placed = {name: place for name in members if (place := _place_in_stack(name)) is not None}
        depths = _depths_of_stacks(placed)
        for name in members if depths else ():
            stack, layer = placed.get(name, ("", 0))
            if stack in depths:
                found[name] = layer, depths[stack]
            else:
                depth = depths[max(depths, key=lambda other: (_parts_in_common(name, other), depths[other]))]
                found[name] = 0 if name in embeddings or _says_embed(name) else depth, depth
    return found


def _place_in_stack(name: str) -> Optional[tuple[str, int]]:
    """The path of the numbered parts to which a param belongs, and its number there."""
    parts = name.split("/")
    for i, part in enumerate(parts[1:-1], start=1):
        if part.isdigit():
            path = "/".join(parts[:i])
            return None if _says_embed(path) else (path, int(part))
    return None


def _depths_of_stacks(placed: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    """How many layers each stack has that counts, by its path. placed (Mapping): The place of each name that has one."""
    numbers: dict[str, set[int]] = {}
    for stack, number in placed.values():
        numbers.setdefault(stack, set()).add(number)
    sizes = Counter(stack for stack, _ in placed.values())
    params_per_layer = {stack: sizes[stack] / len(numbers[stack]) for stack in sizes}
    # Layers are counted from 0, and have parts with params of their own; a head of numbered Linear layers has not.
    composed = {stack for name, (stack, number) in placed.items() if "/" in name.removeprefix(f"{stack}/{number}/")}
    composed = {stack for stack in composed if numbers[stack] == set(range(len(numbers[stack])))}
    largest = max(sizes, key=lambda stack: sizes[stack], default="")
    return {
        stack: 1 + max(numbers[stack])
        for stack in sizes
        if stack == largest or (stack in composed and params_per_layer[stack] >= _PART_OF_LAYER * params_per_layer[largest])
    }


def _parts_in_common(name: str, other: str) -> int:
    """How many parts of two names are the same, from their beginning on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name.split("/"), other.split("/"))))


def _says_embed(name: str) -> bool:
    """Whether a name says that it is of embeddings. That of the component does not count."""
    return "embed" in name.partition("/")[2].lower()


def _is_torch_bias_or_norm(module: torch.nn.Module, name: str, param: torch.nn.Parameter) -> bool:
    owner, _, last = name.rpartition(".")
    if "norm" in type(module.get_submodule(owner)).__name__.lower():
        return True
    # Matrices of biases, one for each head and distance, are learned as weights are. torch's own are (1, 1, width) at most.
    is_matrix = not torch.nn.parameter.is_lazy(param) and sum(size > 1 for size in param.shape) > 1
    return _BIAS.fullmatch(last) is not None and not is_matrix


def _torch_embeddings(shim: Shim) -> set[int]:
    """The `id` of each param of the torch module in a shim that is an embedding, whatever its name.

    These are the params of torch's embedding layers, under all of their names if they are tied; and single vectors, such as the class
    token and positions of a ViT, which stand beside a stack of layers, with a first dimension of 1 for the batch.
    """
    if not isinstance(shim, PyTorchShim) or not isinstance(shim._model, torch.nn.Module):
        return set()
    found = set()
    for module in shim._model.modules():
        of_embedding = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        for param in module.parameters(recurse=False):
            if of_embedding or (_is_token(param) and _holds_layers(module)):
                found.add(id(param))
    return found


def _is_token(param: torch.nn.Parameter) -> bool:
    return not torch.nn.parameter.is_lazy(param) and param.dim() > 2 and param.shape[0] == 1


def _holds_layers(module: torch.nn.Module) -> bool:
    return any(isinstance(below, (torch.nn.ModuleList, torch.nn.Sequential)) for below in module.modules())


class Form(NamedTuple):
    """What is kept of a component's model, in case another one takes its place.

    root (int): Its id in thinc. kinds (tuple): What each node is, outer ones first. paths (tuple[str, ...]): Where it is, below the
    component's name.
    """

    root: int
    kinds: tuple[Any, ...]
    paths: tuple[str, ...]


# Ids of models that took the place of another one, and the paths of its nodes.
_successors: dict[int, tuple[str, ...]] = {}


def form_of(root: Model, prefix: str, before: Optional[Form] = None) -> Form:
    """The form of a component's model.

    before (Form): That of the model that the component had before. If this one has the same nodes, its params keep their names: thinc's
        `Model.copy` does not copy refs, after which layers are named.
    """
    found = list(_paths(root, clean(prefix)))
    kinds = tuple((node.name, *node.param_names, *(type(shim).__name__ for shim in node.shims)) for node, _ in found)
    paths = tuple(path.removeprefix(clean(prefix)) for _, path in found)
    if before is not None and before.root != root.id and before.kinds == kinds and before.paths != paths:
        _successors[root.id] = paths = before.paths
    return Form(root.id, kinds, paths)


def _paths(root: Model, prefix: str) -> Iterator[tuple[Model, str]]:
    """Each node below the root once, outer ones first, with its path."""
    kept = _successors.get(root.id)
    for i, (node, path) in enumerate(_paths_by_refs(root, prefix)):
        yield node, path if kept is None or i >= len(kept) else prefix + kept[i]


def _paths_by_refs(root: Model, prefix: str) -> Iterator[tuple[Model, str]]:
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
