"""Trees of values and tensors, split into values for JSON and tensors for safetensors, and joined again.

JSON has dicts with texts as keys, lists, numbers, texts and None. Everything else is a dict of one key, a mark:
`{"$tuple": [1, 2]}`. A dict that JSON can't hold, or that looks like a mark itself, is marked too.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import is_dataclass, replace
from typing import Any

import numpy
import torch

from .. import kernels
from ..errors import StateError
from ..params import unique

# Numbers that JSON can't hold.
_NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
# A name that safetensors reserves.
_RESERVED = "__metadata__"


def flatten(tree: Mapping[Any, Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    """Split a tree into values for JSON and tensors.

    tree (Mapping): Dicts, lists, tuples, sets, numbers, texts, bytes, None, tensors, and NumPy's arrays and numbers.
    RETURNS (tuple): Values for JSON, and the tensors by path, contiguous and without shared memory.
    RAISES (StateError): The tree has another type of value.
    """
    flat = _Flat()
    return flat.add(tree), flat.tensors


def unflatten(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `flatten`.

    RAISES (KeyError | TypeError | ValueError | RecursionError | RuntimeError): Not the result of `flatten`.
    """
    if isinstance(value, list):
        return [unflatten(item, tensors) if isinstance(item, (dict, list)) else item for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(mark, content)] = value.items()
        if mark == "$tensor":
            return tensors[content]
        if mark == "$strided":
            return _with_strides(tensors[content[0]], *content[1:])
        if mark == "$number":
            return _NUMBERS[content]
        if mark == "$bytes":
            return base64.b64decode(content, validate=True)
        if mark in _COLLECTIONS:
            return _COLLECTIONS[mark](unflatten(content, tensors))
    return {key: unflatten(item, tensors) if isinstance(item, (dict, list)) else item for key, item in value.items()}


def in_main_memory(tree: Any, *, copy: bool = False) -> Any:
    """A tree with its tensors on the CPU. copy (bool): Copy everything, even what is on the CPU already."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu", copy=copy)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{key: in_main_memory(value, copy=copy) for key, value in vars(tree).items()})
    if isinstance(tree, Mapping):
        return {key: in_main_memory(value, copy=copy) for key, value in tree.items()}
    if isinstance(tree, list):
        return [in_main_memory(value, copy=copy) for value in tree]
    return deepcopy(tree) if copy else tree


def copies_in_main_memory(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of tensors on the CPU. Those on a GPU come many at once, `kernels.BLOCK` cells at most. Tested on a double
    of a GPU only.
    """
    made: dict[int, torch.Tensor] = {}
    for (block,) in kernels.blocks([tensor for tensor in tensors.values() if tensor.is_cuda]):
        parts = kernels.parted(kernels.joined(block).detach().to("cpu"), block)
        # A part of a block would keep all of it.
        made |= {id(tensor): part.clone() if len(block) > 1 else part for tensor, part in zip(block, parts)}
    return {
        name: made[id(tensor)] if tensor.is_cuda else tensor.detach().to("cpu", copy=True)
        for name, tensor in tensors.items()
    }


def _array(tensor: torch.Tensor) -> numpy.ndarray[Any, Any]:
    return tensor.numpy().copy(order="K")


_COLLECTIONS: dict[str, Callable[[Any], Any]] = {
    "$dict": dict,
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$array": _array,
    "$scalar": lambda tensor: tensor.numpy()[()],
}


class _Flat:
    """tensors (dict): The tensors so far, by path."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._taken = {_RESERVED}
        self._names_by_memory: dict[int, list[str]] = {}

    def add(self, value: Any, *path: str) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, torch.Tensor):
            return self._add_tensor(value.detach().resolve_neg(), *path)
        if isinstance(value, Mapping):
            return self._add_dict(value, *path)
        if isinstance(value, list):
            return [self.add(item, *path, str(i)) for i, item in enumerate(value)]
        if isinstance(value, tuple):
            return {"$tuple": self.add(list(value), *path)}
        if isinstance(value, (set, frozenset)):
            return {"$frozenset" if isinstance(value, frozenset) else "$set": self.add(sorted(value, key=repr), *path)}
        if isinstance(value, (numpy.ndarray, numpy.generic)):
            return {
                "$scalar" if isinstance(value, numpy.generic) else "$array": self._add_array(
                    numpy.asarray(value), *path
                )
            }
        if isinstance(value, float):
            return {"$number": repr(value)} if repr(value) in _NUMBERS else value
        if isinstance(value, (bytes, bytearray)):
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        if isinstance(value, (int, str)):
            return value
        raise _unknown(value, *path)

    def _add_dict(self, value: Mapping[Any, Any], *path: str) -> Any:
        if all(type(key) is str for key in value) and not (len(value) == 1 and next(iter(value)).startswith("$")):
            return {key: self.add(item, *path, key) for key, item in value.items()}
        items = [(self.add(key, *path, "key"), self.add(item, *path, str(key))) for key, item in value.items()]
        return {"$dict": [{"$tuple": list(pair)} for pair in items]}

    def _add_array(self, value: numpy.ndarray[Any, Any], *path: str) -> Any:
        if not value.flags.writeable or any(stride < 0 for stride in value.strides):
            value = value.copy()
        try:
            return self._add_tensor(torch.from_numpy(value), *path)
        except TypeError as error:
            raise _unknown(value, *path, kind=f"an array of {value.dtype}") from error

    def _add_tensor(self, tensor: torch.Tensor, *path: str) -> Any:
        """Keep the order in memory of a tensor, if it differs from that of the dimensions: torch's results depend on
        it, to the last bit.
        """
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
            raise _unknown(tensor, *path, kind=f"a tensor of {tensor.layout} and {tensor.dtype}")
        order = _order_in_memory(tensor)
        if order is None or tensor.stride() == torch.empty(tensor.shape, device="meta").stride():
            return {"$tensor": self._name(tensor.contiguous(), *path)}
        return {"$strided": [self._name(tensor.permute(order).contiguous(), *path), order, list(tensor.stride())]}

    def _name(self, tensor: torch.Tensor, *path: str) -> str:
        """The path of a tensor. safetensors allows no shared memory, as of tied params: one tensor stands for both, and
        a part of a tensor is copied.
        """
        if tensor.numel() == 1 and tensor.untyped_storage().nbytes() > tensor.itemsize:
            tensor = tensor.clone()  # a view into the tensor with the counts of all params: see core/update/fused.py
        sharing = self._names_by_memory.setdefault(tensor.untyped_storage().data_ptr(), []) if tensor.numel() else []
        for name in sharing:
            other = self.tensors[name]
            if other.data_ptr() == tensor.data_ptr() and other.shape == tensor.shape and other.dtype == tensor.dtype:
                return name
        name = unique(":".join(path).encode("utf8", "backslashreplace").decode("utf8"), self._taken)
        self.tensors[name] = tensor.clone() if sharing else tensor
        sharing.append(name)
        return name


def _unknown(value: Any, *path: str, kind: str | None = None) -> StateError:
    return StateError(
        f"Can't save '{':'.join(path)}': expected numbers, texts and tensors, found {kind or type(value).__name__}."
    )


# ---------------------------------------------------------------------- strides


def _order_in_memory(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions from the outermost to the innermost. None: its memory has gaps or overlaps, or is empty."""
    shape, strides = tensor.shape, tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dim: -strides[dim])
    size = 1
    for dim in reversed(order):
        if shape[dim] == 0 or (shape[dim] > 1 and strides[dim] != size):
            return None
        size *= shape[dim]
    return order


def _with_strides(tensor: torch.Tensor, order: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """A tensor in its order in memory.

    RAISES (TypeError | ValueError | RuntimeError): Not possible.
    """
    if sorted(order) != list(range(tensor.ndim)):
        raise ValueError(f"a tensor of {tensor.ndim} dimensions with order {order} and strides {strides}")
    found = tensor.permute([order.index(dim) for dim in range(tensor.ndim)])
    # The stride of a dimension of size 1 has no effect, but is compared.
    if any(size > 1 and stride != own for size, stride, own in zip(found.shape, strides, found.stride())):
        raise ValueError(f"a tensor of strides {found.stride()} with strides {strides}")
    return found.as_strided(found.shape, tuple(strides))
