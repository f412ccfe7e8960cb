"""Roles of the state tensors of optimizers. They decide how state is filled when its param grows.

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

from collections.abc import Mapping
from typing import Literal, get_args

import torch

from ..errors import ConfigError

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
