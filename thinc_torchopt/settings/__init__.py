"""What the config says: which settings hold for each param, and where its learning rate comes from.

Open cascade.py first: which block of the config counts for which param. blocks.py reads the blocks, param_settings.py
is what holds for one param, rates.py the way of a learning rate. freeze_changes.py and rate_changes.py are what rules
changed in the course of a training; moving.py has the settings of the whole optimizer that schedules move.

*block*: what the config says under a name.
"""

from .blocks import without_policy
from .cascade import Cascade
from .freeze_changes import FreezeChange, FreezeChanges
from .moving import MovingSettings
from .param_settings import ParamSettings
from .rate_changes import RateChange, RateChanges
from .rates import Rates

__all__ = [
    "Cascade",
    "FreezeChange",
    "FreezeChanges",
    "MovingSettings",
    "ParamSettings",
    "RateChange",
    "RateChanges",
    "Rates",
    "without_policy",
]
