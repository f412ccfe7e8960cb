"""Modular: an optimizer made of plug-in modules and regularizers, for any torch model and for spaCy pipelines.

Open optimizer.py first: it says what a step is. modules/ has the modules, regularizers.py the regularizers,
module.py what they have in common and what is to be written for one of your own. aux_vars.py has what optimizers in a
federation tell each other. registered.py is what a config names.
"""

from .aux_vars import AUX_VARS, AuxVar, ScaffoldAuxVar, aggregate, from_bytes, to_bytes
from .blocks import Block
from .each_example import clip_each_example
from .module import Module, Regularizer
from .modules import MODULES
from .optimizer import Modular
from .regularizers import REGULARIZERS

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
    "clip_each_example",
    "from_bytes",
    "to_bytes",
]
