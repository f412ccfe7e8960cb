"""The lasting names of params, and patterns over them.

*key*: thinc's `(node.id, name)`, or the `id` of a torch param. Lives in this process only.
*name*: `component/.../param`, for example `ner/tok2vec/encode/2/maxout/W`. The same in every process, after save and
load, and after labels were added.

From the root of a component's model, each step down adds the name of the layer, with two exceptions:

- A layer that an outer layer refers to (`tok2vec`, `encode`, `output_layer`) follows directly after that layer's name.
- A layer that only combines others (`chain`, `residual`, `with_array`: their names hold `>>` or brackets) has its index
  among its siblings as its name, or none if no sibling has params. So has a wrapper around a torch module.

Torch's dots become slashes.

Other characters than letters, digits, `_`, `-` and `+` are escaped in names of components and params, so different
names stay different: `ä` is `+e4+`. In names of layers they become `_`.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple, Optional

import torch
from thinc.api import Model, PyTorchShim, Shim

from ..errors import ConfigError
from ..host import module_of, original_refs, set_original_refs
from ..near_misses import did_you_mean, near_misses
from ..types import Key

_THINC_BIAS = re.compile(r"b(_.*)?")  # thinc: b; layers with several: b_z, b_r
_BIAS = re.compile(r"(.*_)?bias(_.*)?")  # torch: bias, in_proj_bias, bias_ih_l0
_PARAMETRIZED = re.compile(r"parametrizations\.([^.]+)\.original\d*\Z")  # torch.nn.utils.parametrize

# Parts of names, parts that a config section can't hold, and what `escape` makes.
_PLAIN = re.compile(r"[A-Za-z0-9_+-]+")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_+-]+")
_ESCAPED = re.compile(r"\+([0-9a-f]{2,5}|10[0-9a-f]{4})\+|^\+\+\Z")


Places = list[tuple[Model[Any, Any], list[tuple[Shim, list[tuple[str, torch.nn.Parameter]]]]]]


class NamedParam(NamedTuple):
    """A param that a walk over a model finds, with its place and its name."""

    name: str
    key: Key
    owner: Any  # thinc's node or shim
    is_bias_or_norm: bool
    is_embedding: bool
    param: Optional[torch.nn.Parameter] = None  # torch's

    @property
    def values(self) -> Any:
        """Its array or tensor. None: none yet."""
        if self.param is not None:
            return None if torch.nn.parameter.is_lazy(self.param) else self.param
        name = self.key[1]  # type: ignore[index]
        return self.owner.get_param(name) if self.owner.has_param(name) else None


def walk(model: Model[Any, Any], prefix: str) -> list[NamedParam]:
    """Find all params below a model.

    model (Model): The root.
    prefix (str): The component's name, the first part of all names.
    RETURNS (list[NamedParam]): Every param that a node declares, with or without a value, and every torch param. Names
        are unique; a torch param that is used in several places of its module has several.
    """
    return params_at(paths_of(model, clean(prefix)))


def shim_paths(model: Model[Any, Any], prefix: str) -> list[tuple[str, Shim]]:
    """Every shim below a model with its path, which is unique among the shims of its node."""
    if not any(node.shims for node in model.walk()):
        return []  # without the paths, which take longer
    return shims_at(paths_of(model, clean(prefix)))


def params_at(places: Iterable[tuple[Model[Any, Any], str]]) -> list[NamedParam]:
    """See `walk`. places (Iterable): From `paths_of`."""
    found: list[NamedParam] = []
    taken: set[str] = set()
    for node, path in places:
        for shim in node.shims:
            embeddings = _torch_embeddings(shim)
            for param_name, param in torch_params(shim, remove_duplicate=False):
                name = unique("/".join([path, *map(escape, param_name.split("."))]), taken)
                is_bias_or_norm = _is_torch_bias_or_norm(module_of(shim), param_name, param)
                found.append(NamedParam(name, id(param), shim, is_bias_or_norm, id(param) in embeddings, param))
        for param_name in node.param_names:
            name = unique(f"{path}/{escape(param_name)}", taken)
            is_bias_or_norm = _THINC_BIAS.fullmatch(param_name) is not None or node.name == "layernorm"
            is_embedding = "embed" in node.name or node.name == "static_vectors"
            found.append(NamedParam(name, (node.id, param_name), node, is_bias_or_norm, is_embedding))
    return found


def shims_at(places: Iterable[tuple[Model[Any, Any], str]]) -> list[tuple[str, Shim]]:
    """See `shim_paths`. places (Iterable): From `paths_of`."""
    return [
        (path if len(node.shims) == 1 else f"{path}/{i}", shim)
        for node, path in places
        for i, shim in enumerate(node.shims)
    ]


def torch_params(shim: Shim, *, remove_duplicate: bool = True) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The params of the torch module in a shim, if any. remove_duplicate (bool): Each once, by its first name."""
    if isinstance(shim, PyTorchShim) and module_of(shim) is not None:
        yield from module_of(shim).named_parameters(remove_duplicate=remove_duplicate)


def places_in(model: Model[Any, Any]) -> Places:
    """The nodes of a model, each with its shims and their torch params."""
    return [(node, [(shim, list(torch_params(shim))) for shim in node.shims]) for node in model.walk()]


def _is_torch_bias_or_norm(module: torch.nn.Module, name: str, param: torch.nn.Parameter) -> bool:
    owner, last = _place_in(module, name)
    if "norm" in type(owner).__name__.lower():
        return True
    # Matrices of biases, one for each head and distance, are learned like weights. torch's own biases are (1, 1, width)
    # at most.
    is_matrix = not torch.nn.parameter.is_lazy(param) and sum(size > 1 for size in param.shape) > 1
    return _BIAS.fullmatch(last) is not None and not is_matrix


def _place_in(module: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    """The module that uses a torch param, and what it calls it, also if it is parametrized."""
    owner, _, last = _PARAMETRIZED.sub(r"\1", name).rpartition(".")
    return module.get_submodule(owner), last


def _torch_embeddings(shim: Shim) -> set[int]:
    """The `id` of each embedding in the torch module of a shim.

    These are the params of torch's embedding layers, under all names if they are tied; and single vectors, such as the
    class token and positions of a ViT, beside a stack of layers, with a first dimension of 1 for the batch.
    """
    found = set()
    for name, param in torch_params(shim, remove_duplicate=False):
        owner, _ = _place_in(module_of(shim), name)
        of_embedding = isinstance(owner, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        if of_embedding or (_is_token(param) and _holds_layers(owner)):
            found.add(id(param))
    return found


def _is_token(param: torch.nn.Parameter) -> bool:
    return not torch.nn.parameter.is_lazy(param) and param.dim() > 2 and param.shape[0] == 1


def _holds_layers(module: torch.nn.Module) -> bool:
    return any(isinstance(below, (torch.nn.ModuleList, torch.nn.Sequential)) for below in module.modules())


# ---------------------------------------------------------------------- paths


def paths_of(root: Model[Any, Any], prefix: str) -> list[tuple[Model[Any, Any], str]]:
    """Each node below the root once, as `Model.walk` finds it, with its path. It lasts, also in a copy of the model."""
    nodes, bearing = list(root.walk()), _bearing_nodes(root)
    originals = original_refs(nodes)
    places = [(root, prefix)]
    known = {id(root)}
    by_ref: dict[int, str] = {}
    for node, path in places:
        for ref, target in _refs_of(node, nodes, originals) if node.ref_names or id(node) in originals else ():
            if id(target) not in by_ref:
                short = f"{_without_indices(path)}/{clean(ref)}"
                by_ref[id(target)] = f"{path}/{clean(ref)}" if short in by_ref.values() else short
        siblings = Counter(layer.name for layer in node.layers if id(layer) in bearing)
        alone = siblings.total() < 2 and not node.param_names and not node.shims
        for i, layer in enumerate(node.layers):
            if id(layer) in known:
                continue
            known.add(id(layer))
            part: Optional[str]  # what the layer adds to the path of its params
            if not _PLAIN.fullmatch(layer.name):
                part = None if alone else str(i)
            elif alone and layer.shims:
                part = None
            else:
                part = layer.name if siblings[layer.name] < 2 else f"{layer.name}-{i}"
            places.append((layer, by_ref.get(id(layer)) or (f"{path}/{part}" if part else path)))
    return places


def name_as_original(original: Model[Any, Any], copied: Model[Any, Any]) -> None:
    """Name the layers of a copied model like the original's: thinc's `Model.copy` does not copy refs, which name
    layers.
    """
    nodes = list(original.walk())
    originals = original_refs(nodes)
    copies = {node.id: copy for node, copy in zip(nodes, copied.walk())}
    for node in nodes:
        refs = {ref: copies[target.id].id for ref, target in _refs_of(node, nodes, originals) if target.id in copies}
        if refs:
            set_original_refs(copies[node.id], refs)


def _refs_of(
    node: Model[Any, Any], nodes: list[Model[Any, Any]], originals: Mapping[int, Mapping[str, int]]
) -> list[tuple[str, Model[Any, Any]]]:
    """The refs of a node by name, including those of the node that it is a copy of.

    nodes (list[Model]): The possible targets. originals (Mapping): See `original_refs`.
    """
    found = {ref: target for ref in node.ref_names if (target := node.maybe_get_ref(ref)) is not None}
    if id(node) in originals:
        by_id = {other.id: other for other in nodes}
        found = {ref: by_id[target] for ref, target in originals[id(node)].items() if target in by_id} | found
    return sorted(found.items())


def _without_indices(path: str) -> str:
    """A path without the indices at its end."""
    parts = path.split("/")
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    return "/".join(parts)


def _bearing_nodes(root: Model[Any, Any]) -> set[int]:
    """Ids of the nodes that have params, their own or below them."""
    bearing: set[int] = set()
    for node in root.walk(order="dfs_post"):
        if node.param_names or node.shims or any(id(layer) in bearing for layer in node.layers):
            bearing.add(id(node))
    return bearing


# ---------------------------------------------------------------------- spelling


@lru_cache(10_000)  # a walk meets the same parts again and again
def clean(part: str) -> str:
    """One part of a name, without the characters that a config section can't hold."""
    return _FORBIDDEN.sub("_", part) or "_"


@lru_cache(10_000)
def escape(part: str) -> str:
    """A part of a name, such as a component. Parts of allowed characters stay the same; different ones stay different.

    Every other character becomes its number between two `+`. Then `+` is escaped too, and so are names that look
    escaped.
    """
    if _PLAIN.fullmatch(part) and not _ESCAPED.search(part):
        return part
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"+{ord(found[0]):02x}+", part) or "++"


def unescape(part: str) -> str:
    """Undo `escape`."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", part)


def unique(name: str, taken: set[str]) -> str:
    """The name, with a number appended if it is taken. Adds it to `taken`."""
    candidate, n = name, 2
    while candidate in taken:
        candidate, n = f"{name}-{n}", n + 1
    taken.add(candidate)
    return candidate


# ---------------------------------------------------------------------- patterns over names, as a config has them


class Pattern:
    """A pattern over names: called with a name, it returns whether the name matches. It may be of unescaped parts.

    text (str): A shell glob over the whole name, e.g. "transformer/*", "*/bias"; or "re:" and a regular expression that
        is searched for in the name, e.g. "re:layer/[0-3]/".
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
                    f"Can't use pattern '{text}' in {where}: expected a valid regular expression after 're:', found "
                    f"an error: {error}."
                ) from error

    def __call__(self, name: str) -> bool:
        return self._matches(name) or ("+" in name and self._matches("/".join(map(unescape, name.split("/")))))

    def _matches(self, name: str) -> bool:
        return fnmatchcase(name, self.text) if self._regex is None else self._regex.search(name) is not None

    def check(self, names: Sequence[str]) -> None:
        """Check that the pattern matches a name.

        names (Sequence[str]): All names.
        RAISES (ConfigError): No name matches.
        """
        if not any(map(self, names)):
            raise ConfigError(
                f"Can't use pattern '{self.text}' in {self.where}: it matches none of {len(names)} params. Names start "
                f"with the component's name, and their parts are separated by '/'.{self._meant(names)} List them: "
                "spacy torchopt params."
            )

    def _meant(self, names: Sequence[str]) -> str:
        """A suggestion: the pattern with another component, or a name."""
        head, slash, rest = self.text.partition("/")
        components = {name.partition("/")[0] for name in names}
        near = [f"{component}{slash}{rest}" for component in near_misses(head, components)]
        matching = [text for text in near if any(map(Pattern(text, self.where), names))] if self._regex is None else []
        examples = near_misses(self.text, names, cutoff=0.3) or names[:3]
        return did_you_mean(self.text, matching or names) or f" For example: {', '.join(examples)}."


def matches_any(patterns: Iterable[Pattern], names: Collection[str]) -> bool:
    """Whether one of several patterns matches one of several names."""
    return any(pattern(name) for pattern in patterns for name in names)
