"""The settings of each param, from the config, and its learning rate.

Open cascade.py first: it finds the settings of a param. blocks.py reads the blocks of the config, param_settings.py
holds the settings of a param, rates.py computes its learning rate. freeze_changes.py and rate_changes.py hold the
changes that rules made during the training.

*block*: a named section of settings for some of the params.
"""

from .cascade import Cascade
from .freeze_changes import FreezeChange, FreezeChanges
from .param_settings import ParamSettings
from .rate_changes import RateChange, RateChanges
from .rates import Rates

__all__ = [
    "Cascade",
    "FreezeChange",
    "FreezeChanges",
    "ParamSettings",
    "RateChange",
    "RateChanges",
    "Rates",
]
