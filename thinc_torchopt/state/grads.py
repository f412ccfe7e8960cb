"""Gradients between two updates, by lasting names.

A thinc param keeps its gradient once it had one, if only zeros: each update of its model applies momentum and weight
decay to it, even if the batch gives it no gradient. So which params have one belongs to the state of their optimizer.

After a step of spaCy's training loop all are zero. After `nlp.update(..., sgd=optimizer)` some wait for the next batch:
it updates a shared tok2vec before the backward passes of its listeners.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .. import kernels
from ..host import drop_grad
from ..params import NamedModel, NamedParam, saved_tensor
from ..schema import refuse
from .forms import WHAT


def collect_grads(walked: Iterable[NamedModel]) -> dict[str, torch.Tensor | None]:
    """Collect the gradients of all params, by their first names. Tensors are shared. None: zeros of a thinc param.

    walked (Iterable[NamedModel]): See `walk_pipeline`.
    """
    grads: dict[str, torch.Tensor | None] = {}
    on_gpu: list[str] = []
    for found in _each(walked):
        if (grad := _grad_of(found)) is None:
            continue
        if found.param is not None:
            grads[found.name] = grad
        elif hasattr(grad, "__cuda_array_interface__"):
            grads[found.name] = saved_tensor(grad, found.name)
            on_gpu.append(found.name)
        else:
            grads[found.name] = saved_tensor(grad, found.name) if grad.any() else None
    if on_gpu:  # the host waits once for all of them; in float64, as the squares of small numbers are 0
        norms = kernels.norms([grad for name in on_gpu if (grad := grads[name]) is not None], torch.float64)
        grads.update({name: None for name, norm in zip(on_gpu, torch.stack(norms).tolist()) if norm == 0.0})
    return grads


def check_grads(walked: Iterable[NamedModel], saved: Mapping[str, torch.Tensor | None]) -> None:
    """RAISES (StateError): A gradient has not its param's shape."""
    for found in _each(walked):
        if (grad := saved.get(found.name)) is None:
            continue
        values = found.values
        if values is None or grad.shape != tuple(values.shape):
            expected = "None" if values is None else f"a tensor of shape {tuple(values.shape)}"
            refuse(WHAT, f"grads/{found.name}", expected, f"one of shape {tuple(grad.shape)}")


def restore_grads(walked: Iterable[NamedModel], saved: Mapping[str, torch.Tensor | None]) -> None:
    """Restore gradients, and drop all others. Call `check_grads` first."""
    for found in _each(walked):
        grad = saved.get(found.name)
        if found.param is not None:
            found.param.grad = None if grad is None else grad.to(found.param.device, copy=True)
            continue
        node, name = found.owner, found.key[1]  # type: ignore[index]
        if found.name not in saved or not node.has_param(name):
            drop_grad(node, name)
        else:
            if not node.has_grad(name):
                node.set_grad(name, node.ops.xp.zeros_like(node.get_param(name)))
            node.get_grad(name)[...] = 0 if grad is None else node.ops.asarray(grad.cpu().numpy())


def _each(walked: Iterable[NamedModel]) -> list[NamedParam]:
    """Each param once, by its first name."""
    found: dict[Any, NamedParam] = {}
    for model in walked:
        for param in model.params:
            found.setdefault(param.key, param)
    return list(found.values())


def _grad_of(found: NamedParam) -> Any:
    if found.param is not None:
        return found.param.grad
    name = found.key[1]  # type: ignore[index]
    return found.owner.get_grad(name) if found.owner.has_grad(name) else None
