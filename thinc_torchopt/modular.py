"""The modular optimizer, for Python. It lives in addons/modular/."""

from .addons.modular import (
    AuxVar,
    Block,
    Modular,
    Module,
    Regularizer,
    from_bytes,
    list_optim_modules,
    list_optim_regularizers,
    to_bytes,
)
from .addons.modular.aux_vars import aggregate
from .addons.modular.scaffold import ScaffoldAuxVar
from .addons.modular.specs import MODULES

__all__ = [
    "MODULES",
    "AuxVar",
    "Block",
    "Modular",
    "Module",
    "Regularizer",
    "ScaffoldAuxVar",
    "aggregate",
    "from_bytes",
    "list_optim_modules",
    "list_optim_regularizers",
    "to_bytes",
]
