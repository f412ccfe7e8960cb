"""The state of a Modular optimizer by the names of params: made, and read again with everything checked first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..algorithms import map_tensors
from ..checks import MAX_STEPS, own_errors
from ..errors import StateError, StateKeyError
from .chain import Kept
from .module import Part, Regularizer

VERSION = 1
_KINDS = ("regularizers", "modules")


class SharedState:
    """What parts keep beside params. parts (dict): By label."""

    def __init__(self, parts: dict[str, dict[str, Any]]):
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        return {label: dict(kept) for label, kept in self.parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.parts = {label: dict(kept) for label, kept in state.items()}


def state_by_name(
    parts: Sequence[Part], states: Mapping[str, dict[str, Any]], shared: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The state of all parts: of each its name, what it keeps of each param (None: nothing yet), and beside params."""
    found: dict[str, Any] = {"version": VERSION, "regularizers": [], "modules": []}
    for part in parts:
        kept = {name: dict(Kept(state, part.label)) or None for name, state in states.items() if part.concerns(name)}
        own = {"params": kept, "shared": shared[part.label]}
        found[kind_of(part)].append([part.name, map_tensors(torch.clone, own)])
    return found


def read_state(
    parts: Sequence[Part],
    states: Mapping[str, dict[str, Any]],
    options: Mapping[str, Mapping[str, Any]],
    params: Mapping[str, Tensor],
    saved: Any,
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Read a state. Changes nothing.

    states, options, params (Mapping): The state, the param group, and the tensor of each param, by name.
    RETURNS (tuple): The new state of each param, by name, and what parts keep beside them, by label. Copies.
    RAISES (StateKeyError, StateError): It is not of these parts and params.
    """
    with own_errors("Modular"), torch.no_grad():
        check_keys("Modular", saved, ("version", *_KINDS))
        if saved["version"] != VERSION or isinstance(saved["version"], bool):
            refuse("Modular", f"version {VERSION}", f"version {saved['version']!r}")
        new: dict[str, dict[str, Any]] = {name: {} for name in params}
        shared = {}
        for kind in _KINDS:
            own = [part for part in parts if kind_of(part) == kind]
            found = saved[kind]
            if not isinstance(found, (list, tuple)):
                refuse("Modular", f"a list of {kind}", found)
            if not all(isinstance(item, (list, tuple)) and len(item) == 2 for item in found):
                refuse("Modular", f"of each of the {kind} its name and its state", found)
            if [item[0] for item in found] != [part.name for part in own]:
                refuse(
                    "Modular", f"the {kind} {[part.name for part in own]}", [item[0] for item in found], StateKeyError
                )
            for part, (_, state) in zip(own, found):
                check_keys(part.where, state, ("params", "shared"))
                names = [name for name in params if part.concerns(name)]
                check_keys(f"{part.where}, params", state["params"], names)
                for name in names:
                    read = read_param(part, state["params"][name], params[name], options[name], name)
                    new[name].update({f"{part.label}/{key}": value for key, value in read.items()})
                shared[part.label] = check_shared_of(part, state["shared"])
        return new, shared


def read_param(part: Part, saved: Any, param: Tensor, options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a part kept of a param, as it keeps it here."""
    if saved is None:
        return {}
    where = f"{part.where}, param '{name}'"
    example = part.example_state(param.detach(), {key: options[f"{part.label}_{key}"] for key in part.options})
    check_keys(where, saved, example, optional=part.optional_tensors)
    if not saved:
        refuse(where, "None, as nothing is kept", saved)
    return {key: read_value(f"{where}, {key}", value, example.get(key, param), param) for key, value in saved.items()}


def read_value(where: str, value: Any, example: Any, param: Tensor) -> Any:
    """A value that is like another one."""
    if isinstance(example, bool) or isinstance(value, bool):
        if type(value) is not type(example):
            refuse(where, "true or false" if isinstance(example, bool) else "a number", value)
        return value
    if not isinstance(example, Tensor):
        if type(value) is not type(example) or not 0 <= value <= MAX_STEPS:
            refuse(where, "a number of steps" if isinstance(example, int) else "a number of at least 0", value)
        return value
    if not isinstance(value, Tensor):
        refuse(where, "a tensor", value)
    if value.dtype != example.dtype or (example.shape != () and value.shape != example.shape):
        refuse(where, f"{example.dtype} of shape {tuple(example.shape)}", f"{value.dtype} of {tuple(value.shape)}")
    if not bool(torch.isfinite(value).all()):
        refuse(where, "finite values", "NaN or infinite ones")
    if value.shape == param.shape:
        return torch.empty_like(param, dtype=value.dtype, requires_grad=False).copy_(value)
    return value.to(param.device if value.ndim else value.device, copy=True)


def check_shared(parts: Sequence[Part], saved: Any) -> dict[str, dict[str, Any]]:
    """What parts keep beside params, from a `state_dict`. RAISES (StateError): It is not of these parts."""
    with own_errors("Modular"):
        check_keys("Modular, shared", saved, [part.label for part in parts])
        return {part.label: check_shared_of(part, saved[part.label]) for part in parts}


def check_shared_of(part: Part, saved: Any) -> dict[str, Any]:
    example = part.first_shared()
    check_keys(f"{part.where}, shared", saved, example)
    for key, value in saved.items():
        expected = example[key]
        is_like = type(value) is type(expected) and (
            not isinstance(value, Tensor) or (value.dtype == expected.dtype and value.shape == expected.shape)
        )
        if not is_like or (isinstance(value, list) and not all(isinstance(item, str) for item in value)):
            refuse(f"{part.where}, {key}", f"something like {expected!r}", value)
    part.begin_step(saved)  # a damaged state of a random generator is an error
    copied: dict[str, Any] = map_tensors(torch.clone, dict(saved))
    return copied


def own_state_dict(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """torch gives loaded state the dtype of its param. Ours keeps its own, and gets the memory order of its param."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    for number, param in zip(numbers, params):
        for key, value in saved["state"].get(number, {}).items():
            if isinstance(value, Tensor):
                like = torch.empty_like(param, dtype=value.dtype, requires_grad=False)
                optimizer.state[param][key] = (
                    like.copy_(value) if value.shape == param.shape else value.to(param.device, copy=True)
                )


def check_keys(where: str, found: Any, expected: Any, optional: Sequence[str] = ()) -> None:
    """RAISES (StateError): Not a dict. (StateKeyError): Keys are missing or unexpected."""
    if not isinstance(found, Mapping):
        refuse(where, "a dict", found)
    missing = sorted(set(expected) - set(found))
    unexpected = sorted(map(str, set(found) - set(expected) - set(optional)))
    if missing or unexpected:
        text = f"that {', '.join(missing) or 'none'} are missing and {', '.join(unexpected) or 'none'} unexpected"
        refuse(where, ", ".join(map(str, expected)) or "nothing", text, StateKeyError)


def refuse(where: str, expected: str, found: Any, error: type[StateError] = StateError) -> NoReturn:
    text = found if isinstance(found, str) else f"{type(found).__name__}" if isinstance(found, Tensor) else repr(found)
    raise error(
        f"Can't load the state of {where}: expected {expected}, found {text if len(text) < 500 else text[:500]}. It is "
        "damaged, or of another optimizer. Nothing was loaded."
    )


def kind_of(part: Part) -> str:
    return "regularizers" if isinstance(part, Regularizer) else "modules"
