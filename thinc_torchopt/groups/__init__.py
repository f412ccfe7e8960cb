"""Param groups: what the settings say for each param, and torch's optimizers with one group for each set of settings.

Open cascade.py first: which block of the config counts for which param. settings.py is its result for one param,
rates.py the learning rate. param_groups.py puts params into groups; freezing.py has those that are not trained. A torch
optimizer is built by building.py; built_algorithm.py has its params in their groups (torch_group.py), param_states.py
what it keeps of them, stepping.py its step.

*block*: what the config says under a name. *group*: a param group of torch's. Params with equal settings are in one
group, whichever blocks these are from.
"""

from .blocks import without_policy
from .cascade import Cascade
from .freezing import FreezeChange, FreezeChanges, FrozenGrads
from .group import Group
from .plan import Plan
from .rate_changes import RateChange, RateChanges
from .settings import ParamSettings

__all__ = [
    "Cascade",
    "FreezeChange",
    "FreezeChanges",
    "FrozenGrads",
    "Group",
    "ParamSettings",
    "Plan",
    "RateChange",
    "RateChanges",
    "without_policy",
]
