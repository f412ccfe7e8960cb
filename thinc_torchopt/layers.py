"""The recurrent layer that learns online, for Python. It lives in addons/online/."""

from .addons.online import (
    Cell,
    Dense,
    Elementwise,
    OnlineRNN,
    OnlineTrainer,
    ParamDimTraces,
    copy_torch_weights,
    describe,
    eligibility_gradients,
)
from .addons.online.cells import CELLS

__all__ = [
    "CELLS",
    "Cell",
    "Dense",
    "Elementwise",
    "OnlineRNN",
    "OnlineTrainer",
    "ParamDimTraces",
    "copy_torch_weights",
    "describe",
    "eligibility_gradients",
]
