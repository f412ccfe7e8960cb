"""Modular: an optimizer made of modules and regularizers, for any torch model and for spaCy pipelines.

Open optimizer.py first: it defines a step. modules/ has the modules, regularizers.py the regularizers, module.py their
base class, also for your own. aux_vars.py has the values that optimizers in a federation exchange. registered.py has
the functions for configs.
"""

from .aux_vars import AUX_VARS, AuxVar, ScaffoldAuxVar, aggregate, from_bytes, to_bytes
from .blocks import Block
from .module import Module, Regularizer
from .modules import MODULES
from .optimizer import Modular
from .regularizers import REGULARIZERS
from .specs import list_optim_modules, list_optim_regularizers

__all__ = [
    "AUX_VARS",
    "MODULES",
    "REGULARIZERS",
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
