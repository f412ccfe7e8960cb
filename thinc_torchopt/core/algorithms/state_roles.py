"""Roles of the state tensors of optimizers. They decide how state is filled when its param grows, and what is checked
before a param is trained with it.

moment: a value for each cell of the param, usually an average of gradients. New cells get the mean of old ones.
magnitude: the same, and never negative: an average of squares, for example.
sum: a sum of gradients. New cells get a tenth of the mean: the full mean would move them far.
copy: values of the param itself. New cells are those of the param.
count: one non-negative value for all cells, independent of the param's shape.
rows, columns: a magnitude, summed up along the last dimension of the param, or the one before it. That dimension has
    size 1 (torch), or is missing (others).

torch's names decide the roles. A class that uses a name in another sense, or has names of its own, declares them:
`state_roles = {"z": "copy"}`. Other state counts as a moment if it has the param's shape.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import ConfigError, StateError

Role = Literal["moment", "magnitude", "sum", "copy", "count", "rows", "columns"]
Roles = Mapping[str, Role]

# Roles by torch's names.
ROLES: dict[str, Role] = {
    **dict.fromkeys(["exp_avg", "momentum_buffer", "grad_avg", "prev", "ax"], "moment"),
    **dict.fromkeys(["exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf", "acc_delta"], "magnitude"),
    **dict.fromkeys(["variance", "step_size"], "magnitude"),
    **dict.fromkeys(["step", "mu_product", "mu", "eta"], "count"),
    **dict.fromkeys(["row_var", "exp_avg_sq_row"], "rows"),
    **dict.fromkeys(["col_var", "exp_avg_sq_col"], "columns"),
}
PER_CELL = frozenset(["moment", "magnitude", "sum", "copy"])
NEVER_NEGATIVE = frozenset(["magnitude", "count", "rows", "columns"])

# Registered roles of classes of other libraries, by library and lower-case class name.
_REGISTERED: dict[tuple[str, str], Roles] = {}
# Cache of `roles_of`, which is called for each param.
_FOUND: dict[type, Roles] = {}


def register_roles(library: str, name: str, roles: Roles) -> None:
    """Register the roles of a class of another library.

    library (str): Its package. name (str): Its name there, in any case.
    """
    _REGISTERED[library, name.lower()] = roles


def roles_of(optimizer_class: type[torch.optim.Optimizer]) -> Roles:
    """The roles of a class's state tensors, by their names: its own, and those of its bases.

    RAISES (ConfigError): Its `state_roles` are not valid.
    """
    if optimizer_class in _FOUND:
        return _FOUND[optimizer_class]
    found: dict[str, Role] = dict(ROLES)
    for cls in reversed(optimizer_class.__mro__):
        roles = vars(cls).get("state_roles") or _REGISTERED.get((library_of(cls), cls.__name__.lower()), {})
        if not isinstance(roles, Mapping) or not all(role in get_args(Role) for role in roles.values()):
            raise ConfigError(
                f"Can't use the state_roles of {cls.__name__}: expected a dict of names and roles, each one of "
                f"{list(get_args(Role))}, found {roles!r}."
            )
        found |= roles
    _FOUND[optimizer_class] = found
    return found


def role_of(roles: Roles, key: str) -> Role | None:
    """The role of a state by its key. None: unknown."""
    return roles.get(last_part(key))


def last_part(key: str) -> str:
    """The name of a state without the label of the module that keeps it: Modular has keys such as "adam/exp_avg"."""
    return key.rpartition("/")[2]


def library_of(optimizer_class: type) -> str:
    """The package of a class."""
    return optimizer_class.__module__.partition(".")[0]


# ---------------------------------------------------------------------- checks


def check_states(
    optimizer_class: type[torch.optim.Optimizer], states: Iterable[tuple[str, Mapping[str, Any], Tensor]]
) -> None:
    """Check that params can be trained with their states.

    optimizer_class (type): The class of the optimizer.
    states (Iterable): Names, states and params.
    RAISES (StateError): A state differs from its param in shape or device, is not finite, or is negative and must not
        be.
    """
    roles = roles_of(optimizer_class)
    of_device: dict[torch.device, list[tuple[str, str, Role | None, Tensor, Tensor]]] = defaultdict(list)
    for name, state, param in states:
        if not state:
            raise StateError(f"Can't use the state of param '{name}': expected values, found none.")
        for key, value in state.items():
            role = role_of(roles, key)
            if isinstance(value, Tensor):
                if role in PER_CELL:
                    _check_place(name, key, value, param)
                if value.is_complex():
                    value = torch.view_as_real(value)
                if value.is_floating_point() and value.numel():
                    bounds = (value, value) if value.ndim == 0 else torch.aminmax(value)
                    of_device[value.device].append((name, key, role, *bounds))
            elif isinstance(value, (int, float)):
                _check_range(name, key, role, value, value)
    for found in of_device.values():  # one transfer for each device
        *_, lows, highs = zip(*found)
        for (name, key, role, *_), low, high in zip(found, torch.stack(lows).tolist(), torch.stack(highs).tolist()):
            _check_range(name, key, role, low, high)


def _check_place(name: str, key: str, value: Tensor, param: Tensor) -> None:
    if value.shape != param.shape:
        raise StateError(
            f"Can't use the state of param '{name}': {key} has shape {tuple(value.shape)}, the param has "
            f"{tuple(param.shape)}. It is the state of another param, or was saved before this one grew."
        )
    if value.device != param.device or value.is_complex() != param.is_complex():
        raise StateError(
            f"Can't use the state of param '{name}': {key} is {value.dtype} on {value.device}, the param {param.dtype} "
            f"on {param.device}. Convert and move the model before its state."
        )


def _check_range(name: str, key: str, role: Role | None, low: float, high: float) -> None:
    if not -math.inf < low <= high < math.inf:
        raise StateError(
            f"Can't use the state of param '{name}': expected finite values in {key}, found NaN or infinite ones. A "
            "gradient was not finite at some point. Load an earlier state, or start with a new optimizer."
        )
    if low < 0 and role in NEVER_NEGATIVE:
        raise StateError(
            f"Can't use the state of param '{name}': expected values of at least zero in {key}, found {low:g}. It is "
            "damaged."
        )
