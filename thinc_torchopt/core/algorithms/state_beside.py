"""State of an optimizer that belongs to no param and no group.

torch's own classes have none. Others keep values under names in `state`, in attributes, or in parts that have a
`state_dict` of their own. Private attributes are not saved: they are caches, compiled steps, or torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor

from ..errors import StateError

# Attributes of an optimizer that are saved elsewhere, or are not state.
_NO_STATE = ("state", "param_groups", "defaults", "grad_scale", "found_inf")
# Types that files can hold: see core/state/trees.py.
_PLAIN = (type(None), bool, int, float, str, bytes, set, frozenset, Tensor, numpy.generic, numpy.ndarray)


@dataclass
class StateBeside:
    """Attributes, parts that have a `state_dict`, and named values in `state`."""

    attributes: dict[str, Any]
    parts: dict[str, Any]
    state: dict[str, Any]


def collect_beside(optimizer: torch.optim.Optimizer, options: Collection[str]) -> StateBeside:
    """Collect the state that belongs to no param: usually counters. Tensors are shared.

    options (Collection[str]): Names of attributes that are settings.
    RAISES (StateError): Something in it can't be saved.
    """
    params = {id(param) for group in optimizer.param_groups for param in group["params"]}
    attributes, parts = {}, {}
    for name, value in vars(optimizer).items():
        where = f"'{name}' of {type(optimizer).__name__}"
        if name in options or not _may_be_state(name):
            continue
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            parts[name] = value.state_dict()
            check_plain(parts[name], where)
        elif isinstance(value, dict) and not params.isdisjoint(value):
            raise StateError(
                f"Can't save {where}: its keys are the params' addresses in memory, which differ in each process."
            )
        elif not callable(value) and not isinstance(value, ModuleType):
            attributes[name] = value
            check_plain(value, where)
    in_state: Mapping[Any, Any] = optimizer.state
    state = {key: value for key, value in in_state.items() if type(key) is str}
    check_plain(state, f"the state of {type(optimizer).__name__}")
    return StateBeside(attributes, parts, state)


def restore_beside(optimizer: torch.optim.Optimizer, saved: StateBeside) -> None:
    """Restore the state from `collect_beside`. Tensors are copied. Everything else stays.

    RAISES (StateError): The state of another optimizer.
    """
    attributes, parts, state = (
        map_tensors(Tensor.clone, part) for part in (saved.attributes, saved.parts, saved.state)
    )
    has_parts = all(hasattr(getattr(optimizer, name, None), "load_state_dict") for name in parts)
    if not has_parts or not all(_may_be_state(name) and not hasattr(type(optimizer), name) for name in attributes):
        raise StateError(
            f"Can't load the state of {type(optimizer).__name__}: it does not have all the attributes that were saved, "
            f"{sorted({*attributes, *parts})}. The state is damaged, or was written with another version of its "
            "library."
        )
    for name, value in attributes.items():
        setattr(optimizer, name, value)
    for name, value in parts.items():
        getattr(optimizer, name).load_state_dict(value)
    optimizer.state.update(state)


def check_plain(value: Any, where: str) -> None:
    """Check that a value can be saved: that it consists of dicts, lists, tuples, numbers, texts and tensors.

    where (str): The name of the value, for the error.
    RAISES (StateError): It is or contains something else.
    """
    if isinstance(value, Mapping) and not any(isinstance(key, Tensor) for key in value):
        for key, item in value.items():
            check_plain(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            check_plain(item, f"{where}[{i}]")
    elif isinstance(value, Mapping) or not isinstance(value, _PLAIN):
        found = "a dict by param" if isinstance(value, Mapping) else type(value).__name__
        raise StateError(f"Can't save {where}: expected numbers, texts and tensors, found {found}.")


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A copy of a value, with each tensor replaced by the function's result."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([map_tensors(function, item) for item in value])
    return value


def _may_be_state(attribute: str) -> bool:
    return attribute not in _NO_STATE and not attribute.startswith("_")
