"""One update: from gradients to new values. core/step.py makes it.

frozen_grads.py stops the gradients of frozen params. clipping.py measures and scales gradients, guard.py checks them;
buffers.py restores buffers after a skipped batch. plan.py decides which torch optimizer and which param group updates
a param; built_algorithm.py builds and steps one torch optimizer, param_states.py has its state; fused.py calls its
fused kernel.

*group*: one of torch's param groups. Params with equal settings are in one group, even if the settings are from
different blocks.
"""

from .buffers import KeptBuffers, keep_before_pass
from .built_algorithm import Group
from .clipping import clip_grads, grad_norms, norms_of_grads, total_norm
from .frozen_grads import FrozenGrads
from .guard import JOINT, GradGuard, Verdict, name_of_set, rollback_settings
from .param_states import OF_GROUP
from .plan import GroupPlan
