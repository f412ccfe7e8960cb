"""The path of a node in its model, which lasts, also in a copy of the model."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Optional

from thinc.api import Model

from ..host import lend_refs, lent_refs_of
from .spelling import _PLAIN, clean


def name_as_original(original: Model, copied: Model) -> None:
    """Name the layers of a copied model like the original's: thinc's `Model.copy` does not copy refs, which name
    layers.
    """
    nodes = list(original.walk())
    copies = {node.id: copy for node, copy in zip(nodes, copied.walk())}
    for node in nodes:
        refs = {ref: copies[target.id].id for ref, target in _refs_of(node, nodes) if target.id in copies}
        if refs:
            lend_refs(copies[node.id], refs)


def _refs_of(node: Model, nodes: list[Model]) -> list[tuple[str, Model]]:
    """The refs of a node by name, including those of the node that it is a copy of.

    nodes (list[Model]): The possible targets.
    """
    found = {ref: target for ref in node.ref_names if (target := node.maybe_get_ref(ref)) is not None}
    if lent := lent_refs_of(node):
        by_id = {other.id: other for other in nodes}
        found = {ref: by_id[target] for ref, target in lent.items() if target in by_id} | found
    return sorted(found.items())


def paths_of(root: Model, prefix: str) -> Iterator[tuple[Model, str]]:
    """Each node below the root once, outer ones first, with its path."""
    bearing, nodes = _bearing_nodes(root), list(root.walk())
    paths: dict[int, str] = {id(root): prefix}
    by_ref: dict[int, str] = {}
    queue = [root]
    for node in queue:
        path = paths[id(node)]
        yield node, path
        for ref, target in _refs_of(node, nodes):
            if id(target) not in by_ref:
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
    """A path without the indices at its end."""
    parts = path.split("/")
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    return "/".join(parts)


def _part(layer: Model, index: int, siblings: Mapping[str, int], *, alone: bool) -> Optional[str]:
    """The part that a layer adds to the path of its params. siblings (Mapping): The number of layers with params, by
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
