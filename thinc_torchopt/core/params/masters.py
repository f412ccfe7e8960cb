"""Float32 masters of params of half precision.

bfloat16 has 8 significant bits, float16 has 11: an update that is smaller than a half of the last bit is rounded away.
So the algorithm updates a copy in float32, the master, and the model gets it rounded. Gradients are converted to
float32 before they are measured and clipped; state and averages are of the master. A frozen param has none: it gets
one from the model's values when it is trained (GroupPlan.sync).

The model's values lead. Before each update, a cell of a master whose rounded value differs from the model's takes the
model's: the weights were loaded, restored or changed since, by whatever code. All other cells keep their value.
SOURCE: Micikevicius et al. 2017, https://arxiv.org/abs/1710.03740. In apex the setting has the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .. import kernels
from .param import Param

HALF = (torch.bfloat16, torch.float16)


def master_of(tensor: torch.Tensor) -> torch.Tensor:
    """A float32 copy, in the same memory order."""
    return tensor.detach().float()


@torch.no_grad()
def follow_models(params: Iterable[Param]) -> None:
    """Let masters take values that were changed in the model. Decided on the device, without waiting for it."""
    pairs = [(param.in_model, param.tensor) for param in params if param.has_master]
    for models, masters in kernels.blocks([model for model, _ in pairs], [master for _, master in pairs]):
        model, master = kernels.joined(models), kernels.joined(masters)
        is_kept = master.to(model.dtype) == model
        kernels.copy_(masters, kernels.parted(torch.where(is_kept, master, model.float()), masters))


@torch.no_grad()
def round_to_models(params: Sequence[Param]) -> None:
    """Write masters to the model, rounded to the nearest."""
    pairs = [(param.in_model.detach(), param.tensor) for param in params if param.has_master]
    kernels.copy_([model for model, _ in pairs], [master for _, master in pairs])
