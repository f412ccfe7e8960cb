"""Modular: an optimizer made of modules and regularizers, for any torch model and for spaCy pipelines.

Open optimizer.py first: it defines a step, which blocks.py runs. Modules are in clipping.py, moments.py, scaffold.py
and torch_optim.py, regularizers in regularizers.py. module.py has their base class, also for your own, aux_vars.py the
values that optimizers in a federation exchange. specs.py finds parts by name; registered.py has the functions for
configs.
"""

from typing import Final

from .aux_vars import AuxVar, from_tensors, to_tensors
from .blocks import Block
from .module import Module, Regularizer
from .optimizer import Modular

STABILITY: Final = "experimental"

__all__ = [
    "AuxVar",
    "Block",
    "Modular",
    "Module",
    "Regularizer",
    "from_tensors",
    "to_tensors",
]
