"""The layer of each param in a stack of layers, for `layer_decay`."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile
from typing import Optional

# A second stack counts if its layers have at least this fraction of the params of the largest stack's layers: a decoder
# does, a head does not.
_PART_OF_LAYER = 0.5


def layers_of(names: Iterable[str], embeddings: Collection[str] = ()) -> dict[str, tuple[int, int]]:
    """The layer of each param.

    A component's layers are its numbered parts, e.g. `encoder/layer/0` to `encoder/layer/11`. Of several such stacks,
    the one with most params counts, and those with similar layers, such as the decoder beside an encoder. Each stack is
    numbered by itself. Embeddings are layer 0 of the nearest or deepest stack; params above the layers get the number
    of layers, the depth.

    names (Iterable[str]): All names.
    embeddings (Collection[str]): The names of embeddings. Names with "embed" in them count too, e.g. the norm of the
        embeddings.
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
    """The number of layers of each stack that counts, by its path. placed (Mapping): Path and number, by name."""
    numbers: dict[str, set[int]] = {}
    for stack, number in placed.values():
        numbers.setdefault(stack, set()).add(number)
    sizes = Counter(stack for stack, _ in placed.values())
    params_per_layer = {stack: sizes[stack] / len(numbers[stack]) for stack in sizes}
    # Layers are numbered from 0 and have several params below them, unlike a head of numbered Linear layers.
    composed = {stack for name, (stack, number) in placed.items() if "/" in name.removeprefix(f"{stack}/{number}/")}
    composed = {stack for stack in composed if numbers[stack] == set(range(len(numbers[stack])))}
    largest = max(sizes, key=lambda stack: sizes[stack], default="")
    return {
        stack: 1 + max(numbers[stack])
        for stack in sizes
        if stack == largest
        or (stack in composed and params_per_layer[stack] >= _PART_OF_LAYER * params_per_layer[largest])
    }


def _parts_in_common(name: str, other: str) -> int:
    """The number of common parts at the beginning of two names."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name.split("/"), other.split("/"))))


def _says_embed(name: str) -> bool:
    """Whether a name mentions embeddings, except in the component's name."""
    return "embed" in name.partition("/")[2].lower()
