"""Where a param stands in a stack of layers, for `layer_decay`."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile
from typing import Optional

# A further stack of layers counts if its layers have at least this part of the params of those of the largest: a
# decoder, and not a head.
_PART_OF_LAYER = 0.5


def layers_of(names: Iterable[str], embeddings: Collection[str] = ()) -> dict[str, tuple[int, int]]:
    """In which layer each param is.

    A component's layers are its numbered parts, e.g. `encoder/layer/0` to `encoder/layer/11`; of several such stacks
    the one with most params, and those with layers like it: the other of an encoder and a decoder. Each stack counts
    for itself. Embeddings count as layer 0, what stands above the layers as their number, the depth; of the stack
    nearest to them, or the deepest.

    names (Iterable[str]): All names.
    embeddings (Collection[str]): Those of embeddings. So is what has "embed" in its name: the norm of the embeddings,
        for example.
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
    """How many layers each stack has that counts, by its path. placed (Mapping): The place of each name that has
    one.
    """
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
        if stack == largest
        or (stack in composed and params_per_layer[stack] >= _PART_OF_LAYER * params_per_layer[largest])
    }


def _parts_in_common(name: str, other: str) -> int:
    """How many parts of two names are the same, from their beginning on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name.split("/"), other.split("/"))))


def _says_embed(name: str) -> bool:
    """Whether a name says that it is of embeddings. That of the component does not count."""
    return "embed" in name.partition("/")[2].lower()
