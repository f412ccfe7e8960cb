"""The attrs of thinc's layers: which are data, and whether they have changed."""

from __future__ import annotations

from typing import Any

import numpy
import torch


def is_plain(value: Any) -> bool:
    """Whether a value of a layer's attrs can be saved. Others, such as functions and models, are built by the
    config.
    """
    if isinstance(value, (set, frozenset, list, tuple)):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    if isinstance(value, (numpy.ndarray, numpy.generic)) or hasattr(value, "__cuda_array_interface__"):
        return value.dtype.kind in "biuf" and value.dtype.itemsize <= 8
    return value is None or type(value) in (bool, int, float, str, bytes)


def like(node: Any, key: str, value: Any) -> Any:
    """A saved attr as this layer keeps it: arrays on their device, and the same object if it has not changed."""
    here = node.attrs.get(key)
    if hasattr(here, "__cuda_array_interface__") and isinstance(value, numpy.ndarray):
        return node.ops.asarray(value)
    return here if same_values(here, value) else value


def same_values(one: Any, other: Any) -> bool:
    """Whether two values of layers' attrs are equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and numpy.array_equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_values, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    return bool(one == other)


def on_cpu(value: Any) -> Any:
    """A CuPy array as a NumPy array. Other values are returned as they are."""
    return value.get() if hasattr(value, "__cuda_array_interface__") and not isinstance(value, torch.Tensor) else value
