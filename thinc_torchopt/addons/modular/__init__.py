"""Modular: an optimizer made of modules and regularizers, for any torch model and for spaCy pipelines.

Open optimizer.py first: it defines a step, which step.py runs. Modules are in clipping.py, moments.py, scaffold.py
and torch_optim.py, regularizers in regularizers.py. module.py has their base class, also for your own, aux_vars.py the
values that optimizers in a federation exchange. specs.py finds parts by name; registered.py has the functions for
configs.
"""

from typing import Final

from .aux_vars import AuxVar, from_bytes, from_tensors, to_bytes, to_tensors
from .module import Block, Module, Regularizer
from .optimizer import Modular
from .specs import list_optim_modules, list_optim_regularizers

STABILITY: Final = "experimental"
