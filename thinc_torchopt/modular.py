"""The modular optimizer, for Python. It lives in addons/modular/."""

from .addons.modular import (
    Block,
    Modular,
    Module,
    Regularizer,
    from_bytes,
    list_optim_modules,
    list_optim_regularizers,
    to_bytes,
)

__all__ = [
    "Block",
    "Modular",
    "Module",
    "Regularizer",
    "from_bytes",
    "list_optim_modules",
    "list_optim_regularizers",
    "to_bytes",
]
