"""What the state tensors of an optimizer are. Their roles tell what becomes of them when their param grows.

moment: a value for each cell of the param, most often an average of gradients. New cells get the mean of old ones.
magnitude: the same, and never below zero: an average of squares, for example.
sum: a sum of gradients. New cells get a tenth of the mean, which in full would throw them far.
copy: values of the param itself. New cells are those of the param.
count: what has one value for all cells, never below zero, whatever the shape of the param.
rows, columns: a magnitude, summed up along the last dimension of the param, or the one before it. That has size 1 there
    (torch), or is missing (others).

torch's names tell the roles. A class that means something else by a name, or has names of its own, says so where it is
defined: `state_roles = {"z": "copy"}`. State that has neither is taken for a moment if its shape is the param's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch

from ..errors import ConfigError

Role = Literal["moment", "magnitude", "sum", "copy", "count", "rows", "columns"]
Roles = Mapping[str, Role]

# What torch.optim and its relatives call their state.
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

# By library and name of the class in small letters: what is registered for classes that can't say it themselves.
_REGISTERED: dict[tuple[str, str], Roles] = {}
# What `roles_of` found: it is asked for each param.
_FOUND: dict[type, Roles] = {}


def register_roles(library: str, name: str, roles: Roles) -> None:
    """Say the roles of a class that is another library's.

    library (str): Its package. name (str): Its name there, in any case.
    """
    _REGISTERED[library, name.lower()] = roles


def roles_of(optimizer_class: type[torch.optim.Optimizer]) -> Roles:
    """The roles of the state tensors of a class, by their names: those of its bases, and its own.

    RAISES (ConfigError): Its `state_roles` are no such roles.
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
    """The role of a state by its key. None: nothing says it."""
    return roles.get(last_part(key))


def last_part(key: str) -> str:
    """What a state is called, without the label of the module that keeps it: Modular has keys as in "adam/exp_avg"."""
    return key.rpartition("/")[2]


def library_of(optimizer_class: type) -> str:
    """The package of a class."""
    return optimizer_class.__module__.partition(".")[0]
