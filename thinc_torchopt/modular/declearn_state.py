"""Read the state of declearn's Optimizer: what its `get_state` returns, in the memory of one process or loaded.

    {"lrate": {"steps": 4, "rounds": 0}, "w_decay": {...}, "modules": [("momentum", {"velocity": Vector(...)})]}

A Vector has its arrays as `coefs`; a plain dict of arrays, tensors or lists by the names of params does too. 0.0 stands
for zeros of any shape.

SOURCE: declearn 2.9: declearn/optimizer/_base.py, modules, schedulers, and declearn/model/torch/_optim.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import StateError, StateKeyError
from ..schema import Count, check_names, read
from .blocks import opmath

_WHAT = "the state of declearn's Optimizer"
_ADAM = {"exp_avg": "momentum/state", "exp_avg_sq": "velocity/state", "max_exp_avg_sq": "vmax", "step": "steps"}
# Our names of a module's state, and declearn's. "step" is a number for all params.
NAMES: dict[str, dict[str, str]] = {
    "adagrad": {"sum": "state"},
    "adam": _ADAM,
    "ewma": {"exp_avg": "state"},
    "momentum": {"momentum_buffer": "velocity"},
    "rmsprop": {"square_avg": "state"},
    "scaffold-client": {"correction": "state", "server_correction": "sglob"},
    "scaffold-server": {"correction_sum": "s_state"},
    "yogi": _ADAM,
    "yogi-momentum": {"exp_avg": "state"},
}
# Shared state: our name and declearn's.
_SHARED = {"scaffold-client": ("client", "uuid"), "scaffold-server": ("clients", "clients")}


def is_declearns(state: Any) -> bool:
    return isinstance(state, Mapping) and "version" not in state and not {"lrate", "w_decay"}.isdisjoint(state)


def from_declearn(state: Mapping[str, Any], ours: dict[str, Any], params: Mapping[str, Tensor]) -> dict[str, Any]:
    """Bring a state into our form, which `read_state` checks.

    ours (dict): The present state. What declearn does not save stays: regularizers, random generators.
    params (Mapping): By name.
    RAISES (StateKeyError, StateError): It is not a state of declearn's.
    """
    check_names(dict(state), ["lrate", "w_decay", "modules"], _WHAT)
    modules = []
    for place, (name, of_module) in enumerate(read(list[tuple[str, Any]], state["modules"], _WHAT, "modules")):
        shared = ours["modules"][place][1]["shared"] if place < len(ours["modules"]) else {}
        try:
            modules.append([name, read_module(name, of_module, shared, params)])
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"Can't load {_WHAT}: the part of '{name}' is damaged ({error}).") from error
    schedules = dict(ours["schedules"])
    for option, key in (("lr", "lrate"), ("weight_decay", "w_decay")):
        saved = read(dict[str, Any], state[key], _WHAT, key)
        steps = read(Count, saved.get("steps"), _WHAT, f"{key}/steps")
        if (steps > 0) != (option in schedules):
            raise StateKeyError(
                f"Can't load {_WHAT}: expected '{key}' {'of a schedule' if option in schedules else 'a number'}, as "
                f"'{option}' is here, found {'a scheduler' if steps else 'a number'}."
            )
        if steps:  # declearn draws a value before the step that uses it
            schedules[option] = {
                "position": steps - 1,
                "total_steps": None,
                "source": {
                    "begun": read(int, saved.get("rounds"), _WHAT, f"{key}/rounds") + 1,
                    "warmup_rounds": saved.get("full_warmup_rounds", -1) + 1,
                    "warmup_steps": max(saved.get("warmup_steps", 0) - 1, 0),
                },
            }
    return {**ours, "modules": modules, "schedules": schedules}


def read_module(name: str, saved: Any, shared: dict[str, Any], params: Mapping[str, Tensor]) -> dict[str, Any]:
    """The state of a module, in our form."""
    saved = read(dict[str, Any], saved, _WHAT, name)
    if name == "torch-optim":
        check_names(saved, ["specs", "state"], _WHAT, name)
        names = list(saved["specs"])
        of_params: dict[str, Any] = {
            names[i]: {key: plain(value) for key, value in state.items()} for i, state in saved["state"]
        }
        return {"params": of_params or dict.fromkeys(params), "shared": shared}
    pairs = NAMES.get(name, {})
    beside = [_SHARED[name]] if name in _SHARED else []
    expected = {path.partition("/")[0] for path in pairs.values()} | {theirs for _, theirs in beside}
    check_names(saved, sorted(expected), _WHAT, name)
    values = {key: vector(lookup(saved, path, name), f"{name}/{path}") for key, path in pairs.items()}
    shared = {**shared, **{ours: saved[theirs] for ours, theirs in beside}}
    if isinstance(shared.get("clients"), (list, set)):
        shared["clients"] = sorted(shared["clients"])
    vectors = {key: value for key, value in values.items() if isinstance(value, dict)}
    if not vectors:
        return {"params": dict.fromkeys(params), "shared": shared}
    of_params = {}
    for param in {param: None for found in vectors.values() for param in found}:
        like = torch.zeros_like(params[param], dtype=opmath(params[param].dtype)) if param in params else None
        of_param: dict[str, Any] = {}
        for key, value in values.items():
            if key == "step":
                of_param[key] = value
            elif isinstance(value, dict):
                of_param.update({key: as_state(value[param], like)} if param in value else {})
            elif value is not None:
                of_param[key] = like
        if name == "scaffold-client":
            of_param.update(grad_sum=like, step=0)
        of_params[param] = of_param
    return {"params": of_params, "shared": shared}


def lookup(saved: Any, path: str, name: str) -> Any:
    for key in path.split("/"):
        if not isinstance(saved, Mapping) or key not in saved:
            raise StateKeyError(f"Can't load {_WHAT}: expected '{path}' in '{name}', found none.")
        saved = saved[key]
    return saved


def vector(value: Any, path: str) -> Any:
    """A vector as a dict. 0.0, None and numbers of steps stay."""
    value = getattr(value, "coefs", value)
    if isinstance(value, Mapping):
        return {param: plain(array) for param, array in value.items()}
    if value is None or (type(value) in (int, float) and (type(value) is int or value == 0.0)):
        return value
    raise StateError(f"Can't load {_WHAT}: expected a vector or 0.0 as '{path}', found {value!r}.")


def plain(value: Any) -> Any:
    """An array or list as a tensor."""
    return value if isinstance(value, (Tensor, int, float, bool)) else torch.as_tensor(value)


def as_state(tensor: Tensor, like: Tensor | None) -> Tensor:
    return tensor if like is None or not tensor.is_floating_point() else tensor.to(like.device, like.dtype)
