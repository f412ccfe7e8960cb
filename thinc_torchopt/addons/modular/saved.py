"""Save the state of a Modular optimizer by the names of params, and read it after checking everything."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.algorithms import map_tensors
from ...core.checks import own_errors
from ...core.errors import StateError, StateKeyError
from ...core.schema import Count, NotNegative, check_names, check_version, read, refuse, write
from .module import ModularPart, Regularizer, StateView

VERSION = 2
_KINDS: dict[type, Any] = {bool: bool, int: Count, float: NotNegative}


class SharedState:
    """State of parts that belongs to no param. parts (dict): By label."""

    def __init__(self, parts: dict[str, dict[str, Any]]):
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        return {label: dict(kept) for label, kept in self.parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.parts = {label: dict(kept) for label, kept in state.items()}


@dataclass
class ModularPartState:
    """The state of a part: for each param (None: none yet), and shared."""

    params: dict[str, dict[str, Any] | None]
    shared: dict[str, Any]


@dataclass
class ModularState:
    """The states of all parts, with their names."""

    version: Count
    regularizers: list[tuple[str, ModularPartState]]
    modules: list[tuple[str, ModularPartState]]


def state_by_name(
    parts: Sequence[ModularPart], states: Mapping[str, dict[str, Any]], shared: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The states of all parts. shared (Mapping): Their shared state, by label."""
    found = ModularState(VERSION, [], [])
    for part in parts:
        kept = {
            name: dict(StateView(state, part.label)) or None for name, state in states.items() if part.concerns(name)
        }
        of_kind = found.regularizers if isinstance(part, Regularizer) else found.modules
        of_kind.append((part.name, ModularPartState(kept, dict(shared[part.label]))))
    copied: dict[str, Any] = map_tensors(torch.clone, write(found))
    return copied


def to_json(tree: Any) -> Any:
    """A state without tensors: each becomes a dict with its dtype, shape, and bytes in base64."""
    if isinstance(tree, Tensor):
        data = tree.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        dtype = str(tree.dtype).removeprefix("torch.")
        return {"dtype": dtype, "shape": list(tree.shape), "base64": b64encode(data).decode("ascii")}
    if isinstance(tree, Mapping):
        return {key: to_json(value) for key, value in tree.items()}
    return [to_json(value) for value in tree] if isinstance(tree, (list, tuple)) else tree


def from_json(tree: Any, what: str) -> Any:
    """Undo `to_json`. what (str): The name of the state in errors.

    RAISES (StateError): The values of a tensor are damaged.
    """
    if isinstance(tree, Mapping):
        if tree.keys() == {"dtype", "shape", "base64"}:
            try:
                data = bytearray(b64decode(tree["base64"], validate=True))
                dtype = getattr(torch, tree["dtype"])
                values = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
                return values.reshape(tree["shape"])
            except (TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise StateError(f"Can't load {what}: a tensor is damaged ({error}).") from error
        return {key: from_json(value, what) for key, value in tree.items()}
    return [from_json(value, what) for value in tree] if isinstance(tree, (list, tuple)) else tree


def read_state(
    parts: Sequence[ModularPart], options: Mapping[str, Mapping[str, Any]], params: Mapping[str, Tensor], saved: Any
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Read a state. Changes nothing.

    options, params (Mapping): The param group and the tensor of each param, by name.
    RETURNS (tuple): Copies: the new state of each param, by name, and the shared state, by label.
    RAISES (StateKeyError, StateError): It does not fit these parts and params.
    """
    what = "the state of Modular"
    with own_errors("Modular"), torch.no_grad():
        check_version(saved, VERSION, what)
        state = read(ModularState, from_json(saved, what), what)
        new: dict[str, dict[str, Any]] = {name: {} for name in params}
        shared = {}
        for kind, found in (("regularizers", state.regularizers), ("modules", state.modules)):
            own = [part for part in parts if isinstance(part, Regularizer) == (kind == "regularizers")]
            names_here, names_there = [part.name for part in own], [name for name, _ in found]
            if names_here != names_there:
                refuse(what, kind, f"those of {names_here}", f"{names_there}", error=StateKeyError)
            for part, (_, of_part) in zip(own, found):
                names = [name for name in params if part.concerns(name)]
                check_names(of_part.params, names, f"the state of {part.where}", "params")
                for name in names:
                    values = read_param(part, of_part.params[name], params[name], options[name], name)
                    new[name].update({f"{part.label}/{key}": value for key, value in values.items()})
                shared[part.label] = check_shared_of(part, of_part.shared)
        return new, shared


def read_param(
    part: ModularPart, saved: dict[str, Any] | None, param: Tensor, options: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Read a part's state of a param."""
    if saved is None:
        return {}
    what = f"the state of {part.where}, param '{name}'"
    example = part.example_state(param.detach(), {key: options[f"{part.label}_{key}"] for key in part.options})
    check_names(saved, [*example, *(key for key in part.optional_tensors if key in saved)], what)
    if not saved:
        refuse(what, "", "None, as this part has no state", "an empty state")
    return {key: read_value(what, key, value, example.get(key, param), param) for key, value in saved.items()}


def read_value(what: str, key: str, value: Any, example: Any, param: Tensor) -> Any:
    """Read a value, and check it against an example."""
    if not isinstance(example, Tensor):
        found: Any = read(_KINDS[type(example)], value, what, key)
        return found
    saved = read(Tensor, value, what, key)
    if saved.dtype != example.dtype or saved.shape != example.shape:
        expected, found = (f"{tensor.dtype} of shape {tuple(tensor.shape)}" for tensor in (example, saved))
        refuse(what, key, expected, found)
    if not bool(torch.isfinite(saved).all()):
        refuse(what, key, "finite values", "NaN or infinite ones")
    if saved.shape == param.shape:
        return torch.empty_like(param, dtype=saved.dtype).copy_(saved)
    return saved.to(param.device if saved.ndim else saved.device, copy=True)


def check_shared(parts: Sequence[ModularPart], saved: Any) -> dict[str, dict[str, Any]]:
    """Read the shared state of parts from a `state_dict`. RAISES (StateError): It does not fit these parts."""
    what = "the state of Modular"
    with own_errors("Modular"):
        found = read(dict[str, dict[str, Any]], saved, what, "shared")
        check_names(found, [part.label for part in parts], what, "shared")
        return {part.label: check_shared_of(part, found[part.label]) for part in parts}


def check_shared_of(part: ModularPart, saved: dict[str, Any]) -> dict[str, Any]:
    what, example = f"the state of {part.where}", part.first_shared()
    check_names(saved, example, what, "shared")
    for key, value in saved.items():
        expected = example[key]
        kind = list[str] if isinstance(expected, list) else type(expected)
        found: Any = read(kind, value, what, f"shared/{key}")
        if isinstance(found, Tensor) and (found.dtype, found.shape) != (expected.dtype, expected.shape):
            refuse(what, f"shared/{key}", f"{expected.dtype} of shape {tuple(expected.shape)}", "another")
    part.begin_step(saved)  # raises for a damaged state of a random generator
    copied: dict[str, Any] = map_tensors(torch.clone, saved)
    return copied


def own_state_dict(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Restore the dtypes of loaded state, which torch changes to those of params, and use the memory order of
    params.
    """
    owned = [param for group in optimizer.param_groups for param in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    for number, param in zip(numbers, owned):
        for key, value in saved["state"].get(number, {}).items():
            if isinstance(value, Tensor):
                like = torch.empty_like(param, dtype=value.dtype)
                optimizer.state[param][key] = (
                    like.copy_(value) if value.shape == param.shape else value.to(param.device, copy=True)
                )
