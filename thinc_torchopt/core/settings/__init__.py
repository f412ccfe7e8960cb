"""The settings of each param, from the config, and its learning rate.

Open cascade.py first: it finds the settings of a param, in the form of params/param_settings.py. blocks.py reads the
blocks of the config, changes.py holds the changes that rules made during the training.

*block*: a named section of settings for some of the params.
"""

from .cascade import Cascade, layers_of
from .changes import FreezeChange, RateChange, with_freeze_change, with_rate_change
