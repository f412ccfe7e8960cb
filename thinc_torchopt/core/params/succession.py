"""Pass state from a param to another one that takes its name, if both are the same thing.

They are if the layer is a copy, or was resized, by `add_label` for example. Another layer under an old name starts
without state, but keeps the learning rate, and stays frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from thinc.api import Model, Shim

from ..host import insertions_into, module_of
from ..inserted import order_after
from .names import NamedParam
from .param import Param, ParamRow, saved_tensor


class Released(NamedTuple):
    """The values that a param leaves in this process to the one that takes its name.

    lineage (object): As in `Param`.
    optimizer_class (type | None): The class of torch optimizers that updated it. None: it leaves no state.
    average (Any): Its average, or None.
    """

    lineage: object
    row: ParamRow
    optimizer_class: type | None
    average: Any


def going_on(pairs: Sequence[tuple[Param, NamedParam]]) -> set[str]:
    """Find the params whose successors are the same thing.

    A successor is if it has the old values, as far as both shapes reach, together with all params of its layer. Values
    that are all alike, such as the zeros and ones of new biases and norms, prove nothing: then the rest of the layer
    decides, or of the component. Params that a shim loads into a rebuilt module are always the same.

    pairs (Sequence): Params that are no longer in the pipeline, each with the one that has its name now.
    RETURNS (set[str]): Names.
    """
    alike = {param.name: _is_alike(param, found) for param, found in pairs}
    in_layer: dict[str, set[bool | None]] = {}
    in_component: dict[str, set[bool | None]] = {}
    for name, answer in alike.items():
        in_layer.setdefault(_layer(name), set()).add(answer)
        in_component.setdefault(name.partition("/")[0], set()).add(answer)
    return {
        name
        for name in alike
        if False not in (answers := in_layer[_layer(name)])
        and (True in answers or False not in in_component[name.partition("/")[0]])
    }


def _is_alike(param: Param, found: NamedParam) -> bool | None:
    """Whether a successor has the values of a param. None: unknown."""
    old, new = _tensor_of(param.values, param.name), _tensor_of(found.values, param.name)
    if old is None or new is None:
        return False
    if isinstance(found.owner, Shim) and found.owner is param.holder and module_of(found.owner) is not param.module:
        return True
    if old.ndim != new.ndim:
        old, new = old.flatten(), new.flatten()
        if old.shape != new.shape:
            return False
    if isinstance(found.owner, Model) and (insertions := insertions_into(found.owner)):
        order = order_after(insertions, found.key[1], old.shape, new.shape)  # type: ignore[index]
        new = new if order is None else order.old_first(new)
    common = tuple(slice(min(sizes)) for sizes in zip(old.shape, new.shape))
    old, new = old[common].to(new.device, new.dtype), new[common]
    if not torch.equal(old, new):
        return False
    return True if old.numel() and bool((old != old.flatten()[0]).any()) else None


def _tensor_of(values: Any, name: str) -> torch.Tensor | None:
    """Values as a tensor. None: missing, or not to be optimized."""
    if isinstance(values, torch.Tensor):
        return values.detach() if values.layout == torch.strided else None
    dtype = getattr(values, "dtype", None)
    return saved_tensor(values, name) if dtype is not None and dtype.kind == "f" and dtype.itemsize <= 8 else None


def _layer(name: str) -> str:
    return name.rpartition("/")[0]


def shims_of(pairs: Iterable[tuple[Param, NamedParam]], going_on: set[str]) -> list[tuple[Shim, Shim, bool]]:
    """The shims of removed torch params, the shims that have their names now, and whether all params are the same."""
    found: dict[tuple[int, int], tuple[Shim, Shim, bool]] = {}
    for param, successor in pairs:
        old, new = param.holder, successor.owner
        if isinstance(old, Shim) and isinstance(new, Shim):
            *_, all_so_far = found.get((id(old), id(new)), (old, new, True))
            found[id(old), id(new)] = old, new, all_so_far and param.name in going_on
    return list(found.values())
