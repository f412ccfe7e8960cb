"""One update: from gradients to new values.

Open step.py first: an update from top to bottom. grads.py collects the gradients, and stops those of frozen params.
clipping.py measures and scales them, guard.py checks them; buffers.py restores buffers after a skipped batch. plan.py
decides which torch optimizer and which param group (group.py) updates a param; built_algorithm.py builds and steps one
torch optimizer, and has its state; fused.py calls its fused kernel.

*group*: one of torch's param groups. Params with equal settings are in one group, even if the settings are from
different blocks.
"""

from .buffers import KeptBuffers, keep_before_pass
from .built_algorithm import OF_GROUP
from .clipping import grad_norms, total_norm
from .grads import FrozenGrads, NotedGrads
from .group import Group
from .guard import JOINT, GradGuard, name_of_set, rollback_settings
from .plan import GroupPlan
from .step import Reduce, Step
