"""Where a node stands in its model, as a path that lasts; also when another model takes the place of one."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Optional

from thinc.api import Model

from .spelling import _PLAIN, clean


class Form(NamedTuple):
    """What is kept of a component's model, in case another one takes its place.

    root (int): Its id in thinc. kinds (tuple): What each node is, outer ones first. paths (tuple[str, ...]): Where it
        is, below the
    component's name.
    """

    root: int
    kinds: tuple[Any, ...]
    paths: tuple[str, ...]


# Ids of models that took the place of another one, and the paths of its nodes.
_successors: dict[int, tuple[str, ...]] = {}


def form_of(root: Model, prefix: str, before: Optional[Form] = None) -> Form:
    """The form of a component's model.

    before (Form): That of the model that the component had before. If this one has the same nodes, its params keep
        their names: thinc's `Model.copy` does not copy refs, after which layers are named.
    """
    found = list(paths_of(root, clean(prefix)))
    kinds = tuple((node.name, *node.param_names, *(type(shim).__name__ for shim in node.shims)) for node, _ in found)
    paths = tuple(path.removeprefix(clean(prefix)) for _, path in found)
    if before is not None and before.root != root.id and before.kinds == kinds and before.paths != paths:
        _successors[root.id] = paths = before.paths
    return Form(root.id, kinds, paths)


def paths_of(root: Model, prefix: str) -> Iterator[tuple[Model, str]]:
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
        siblings = Counter(layer.name for layer in node.layers if id(layer) in bearing)
        alone = siblings.total() < 2 and not node.param_names and not node.shims
        for i, layer in enumerate(node.layers):
            if id(layer) in paths:
                continue
            part = _part(layer, i, siblings, alone=alone)
            paths[id(layer)] = by_ref.get(id(layer)) or (f"{path}/{part}" if part else path)
            queue.append(layer)


def _without_indices(path: str) -> str:
    """A path up to its last part that is no index."""
    parts = path.split("/")
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    return "/".join(parts)


def _part(layer: Model, index: int, siblings: Mapping[str, int], *, alone: bool) -> Optional[str]:
    """What a layer adds to the path of its params. siblings (Mapping): How many of the layers with params have each
    name.
    """
    if not _PLAIN.fullmatch(layer.name):
        return None if alone else str(index)
    if alone and layer.shims:
        return None
    return layer.name if siblings[layer.name] < 2 else f"{layer.name}-{index}"


def _bearing_nodes(root: Model) -> set[int]:
    """Ids of the nodes that have params, their own or below them."""
    bearing: set[int] = set()
    for node in root.walk(order="dfs_post"):
        if node.param_names or node.shims or any(id(layer) in bearing for layer in node.layers):
            bearing.add(id(node))
    return bearing
