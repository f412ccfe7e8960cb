"""The settings of each param, from the config, and its learning rate.

Open cascade.py first: it finds the settings of a param. blocks.py reads the blocks of the config, param_settings.py
holds the settings of a param and computes its learning rate, changes.py holds the changes that rules made during the
training.

*block*: a named section of settings for some of the params.
"""

from .cascade import Cascade, layers_of
from .changes import FreezeChange, RateChange, with_freeze_change, with_rate_change
from .param_settings import ParamSettings
