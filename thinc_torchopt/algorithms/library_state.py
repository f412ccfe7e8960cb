"""What torch optimizers of other libraries keep, as a tree that trees.py takes: dicts, lists, tuples, numbers, texts
and tensors.

torch's own classes keep nothing else, and all of it by param or by group. Others keep queues, objects that hold
matrices, counters beside the params. An object is taken apart if its class comes from the optimizer's own library; it
is put together again without running any code of it.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from types import ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor

from ..errors import StateError

# Marks what a tree has no form for.
_KIND = "__kind__"
_PLAIN = (bool, int, float, str, bytes, set, frozenset, Tensor, numpy.generic, numpy.ndarray)
# The parts of what an optimizer keeps beside its params and groups.
BESIDE = ("attributes", "parts", "state")
# Attributes of an optimizer that are kept elsewhere, or are no state. A list of rates by group is in the groups: see
# groups/building.py. FlashAdamW's `param_absmax` is computed again.
_NO_STATE = ("state", "param_groups", "defaults", "grad_scale", "found_inf", "base_lrs", "param_absmax")


def to_tree(value: Any, library: str, where: str) -> Any:
    """Take a value apart. Tensors are shared.

    library (str): The package whose objects are taken apart. See `library_of`.
    where (str): What it is, for the error.
    RAISES (StateError): It is, or has in it, what no file takes.
    """
    if value is None or (isinstance(value, _PLAIN) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Mapping):
        if _KIND not in value and not any(isinstance(key, Tensor) for key in value):
            return {key: to_tree(item, library, f"{where}[{key!r}]") for key, item in value.items()}
    elif isinstance(value, (list, tuple, deque)):
        items = [to_tree(item, library, f"{where}[{i}]") for i, item in enumerate(value)]
        if isinstance(value, deque):
            return {_KIND: "deque", "items": items, "maxlen": value.maxlen}
        if isinstance(value, torch.Size):
            return {_KIND: "size", "items": items}
        return items if isinstance(value, list) else tuple(items)
    elif isinstance(value, torch.dtype):
        return {_KIND: "dtype", "name": str(value).removeprefix("torch.")}
    elif _is_of(type(value), library):
        found = {"module": type(value).__module__, "class": type(value).__qualname__}
        if isinstance(value, Enum):
            return {_KIND: "enum", **found, "name": value.name}
        if hasattr(value, "__dict__") and not callable(value):
            return {_KIND: "object", **found, "attributes": to_tree(vars(value), library, where)}
    raise StateError(
        f"Can't save {where}: expected numbers, texts, tensors, and objects of '{library}', found "
        f"{type(value).__name__}."
    )


def from_tree(tree: Any, library: str) -> Any:
    """Put together what `to_tree` took apart.

    RAISES (StateError): It is damaged, or of another library or version of it.
    """
    if isinstance(tree, (list, tuple)):
        return type(tree)(from_tree(item, library) for item in tree)
    if not isinstance(tree, Mapping):
        return tree
    if _KIND not in tree:
        return {key: from_tree(item, library) for key, item in tree.items()}
    try:
        return _READ[tree[_KIND]](tree, library)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(
            f"Can't load the state of the optimizer: expected a {tree[_KIND]!r} as this package writes it, found "
            f"{error!r}. It is damaged."
        ) from error


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A copy of a value, with other tensors in it."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, deque):
        return deque((map_tensors(function, item) for item in value), value.maxlen)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(map_tensors(function, item) for item in value)
    if isinstance(value, Enum) or not hasattr(value, "__dict__") or callable(value):
        return value
    copied = object.__new__(type(value))
    vars(copied).update(map_tensors(function, vars(value)))
    return copied


def library_of(optimizer: torch.optim.Optimizer) -> str:
    """The package of an optimizer's class."""
    return type(optimizer).__module__.partition(".")[0]


# ---------------------------------------------------------------------- what belongs to no param and no group


def collect_beside(optimizer: torch.optim.Optimizer, options: Collection[str]) -> dict[str, Any]:
    """What an optimizer keeps beside its params and groups, as a tree: counters, most of the time.

    options (Collection[str]): Attributes of these names are settings.
    RAISES (StateError): There is something that can't be saved.
    """
    library, name = library_of(optimizer), type(optimizer).__name__
    params = {id(param) for group in optimizer.param_groups for param in group["params"]}
    attributes, parts = {}, {}
    for key, value in vars(optimizer).items():
        if key in options or not _may_be_state(key):
            continue
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            parts[key] = to_tree(value.state_dict(), library, f"'{key}' of {name}")
        elif isinstance(value, dict) and not params.isdisjoint(value):
            raise StateError(
                f"Can't save '{key}' of {name}: expected state by param, found it by the param's address in memory."
            )
        elif not callable(value) and not isinstance(value, ModuleType):
            attributes[key] = to_tree(value, library, f"'{key}' of {name}")
    state = {
        key: to_tree(value, library, f"state['{key}'] of {name}")
        for key, value in optimizer.state.items()
        if type(key) is str
    }
    return {kind: values for kind, values in zip(BESIDE, (attributes, parts, state)) if values}


def restore_beside(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Give an optimizer what `collect_beside` took. Tensors are copied. What is not among it stays.

    RAISES (StateError): The state of another optimizer.
    """
    found = map_tensors(Tensor.clone, from_tree(saved, library_of(optimizer)))
    attributes, parts, state = (found.get(kind, {}) for kind in BESIDE)
    has_parts = all(hasattr(getattr(optimizer, name, None), "load_state_dict") for name in parts)
    if not has_parts or not all(_may_be_state(name) and not hasattr(type(optimizer), name) for name in attributes):
        raise StateError(
            f"Can't load the state of {type(optimizer).__name__}: expected what it keeps beside its params, found "
            f"{sorted(attributes)} and {sorted(parts)}. The state is damaged, or was written with another version of "
            f"'{library_of(optimizer)}'."
        )
    for name, value in attributes.items():
        setattr(optimizer, name, value)
    for name, value in parts.items():
        getattr(optimizer, name).load_state_dict(value)
    optimizer.state.update(state)


def _may_be_state(attribute: str) -> bool:
    # What is private is caches, compiled steps, and torch's own.
    return attribute not in _NO_STATE and not attribute.startswith("_")


# ---------------------------------------------------------------------- objects


def _is_of(cls: type, library: str) -> bool:
    return library != "torch" and cls.__module__.partition(".")[0] == library


def _class_of(tree: Mapping[str, Any], library: str, base: type = object) -> Any:
    """The class of an object in a tree. Nothing is imported for it."""
    cls: Any = sys.modules.get(tree["module"])
    for part in tree["class"].split("."):
        cls = getattr(cls, part, None)
    if not isinstance(cls, type) or not issubclass(cls, base) or not _is_of(cls, library):
        raise StateError(
            f"Can't load the state of the optimizer: expected an object of a class in '{library}', found "
            f"{tree['module']}.{tree['class']}. The state is damaged, or was written with another version of that "
            "library."
        )
    return cls


def _read_object(tree: Mapping[str, Any], library: str) -> Any:
    made = object.__new__(_class_of(tree, library))
    vars(made).update(from_tree(tree["attributes"], library))
    return made


def _read_dtype(tree: Mapping[str, Any], library: str) -> torch.dtype:
    found = getattr(torch, tree["name"])
    if not isinstance(found, torch.dtype):
        raise ValueError(tree["name"])
    return found


_READ: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "deque": lambda tree, library: deque(from_tree(tree["items"], library), tree["maxlen"]),
    "size": lambda tree, library: torch.Size(tree["items"]),
    "dtype": _read_dtype,
    "enum": lambda tree, library: _class_of(tree, library, Enum).__members__[tree["name"]],
    "object": _read_object,
}
