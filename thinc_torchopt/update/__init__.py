"""One update: from gradients to new values.

Open step.py first: an update from top to bottom. noted.py collects its gradients. norms.py, guard.py and clipping.py
look at them; buffers.py brings back what a skipped batch wrote. plan.py says which torch optimizer, and which param
group (group.py), updates a param; built_algorithm.py is one torch optimizer, which building.py builds, stepping.py and
direct.py let step, and whose state param_states.py holds. frozen_grads.py: those without a gradient.

*group*: a param group of torch's. Params with equal settings are in one group, whichever blocks these are from.
"""

from .frozen_grads import FrozenGrads
from .group import Group
from .guard import JOINT, Guard, rollback_settings
from .norms import grad_norms, total_norm
from .noted import NotedGrads
from .plan import Plan
from .reduce import Reduce
from .step import Step, name_of_set

__all__ = [
    "JOINT",
    "FrozenGrads",
    "Group",
    "Guard",
    "NotedGrads",
    "Plan",
    "Reduce",
    "Step",
    "grad_norms",
    "name_of_set",
    "rollback_settings",
    "total_norm",
]
