"""Gradients: measured once, judged, clipped. Open norms.py first, then clipping.py and guard.py.

buffers.py brings back what a batch wrote to BatchNorm's statistics when its update is skipped.
"""

from .buffers import KeptBuffers
from .clipping import clip_grads, scale_grads
from .guard import JOINT, Guard, Verdict, rollback_settings
from .norms import grad_norms, norms_of_grads, total_norm
from .reduce import Reduce

__all__ = [
    "JOINT",
    "Guard",
    "KeptBuffers",
    "Reduce",
    "Verdict",
    "clip_grads",
    "grad_norms",
    "norms_of_grads",
    "rollback_settings",
    "scale_grads",
    "total_norm",
]
