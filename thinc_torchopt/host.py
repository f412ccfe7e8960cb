"""What of thinc's shims begins with an underscore, and is needed all the same. No other file reads these attributes.
hooks.py has the functions of thinc and spaCy that are replaced, kernels.py torch's private ops.
"""

from __future__ import annotations

from typing import Any

import torch
from thinc.api import PyTorchShim, Shim


def module_of(shim: Shim) -> Any:
    """The torch module that a shim wraps, or None: it wraps something else.

    SOURCE: thinc/shims/shim.py, `Shim._model`.
    """
    return shim._model if isinstance(shim._model, torch.nn.Module) else None


def scaler_of(shim: Shim) -> Any:
    """The gradient scaler of thinc's shim for torch, for mixed precision. None: it is another kind of shim.

    SOURCE: thinc/shims/pytorch.py, `PyTorchShim._grad_scaler`.
    """
    return shim._grad_scaler if isinstance(shim, PyTorchShim) else None
