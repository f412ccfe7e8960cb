"""Param groups: what the settings say for each param, and torch's optimizers with one group for each set of settings.

Open cascade.py first: which block counts where. settings.py is its result for one param, param_groups.py puts params into groups,
torch_groups.py has the torch optimizer behind them, freezing.py what is not trained.
"""

from .cascade import Cascade, without_policy
from .freezing import FrozenGrads
from .param_groups import ParamGroups

__all__ = [
    "Cascade",
    "FrozenGrads",
    "ParamGroups",
    "without_policy",
]
