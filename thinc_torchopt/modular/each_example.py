"""Clip the gradient of each example of a spaCy pipeline, for differential privacy.

thinc's layers only give the gradients of a whole batch. So examples are processed one at a time, which is as slow as
one update per example.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import Model, torch2xp, xp2torch

from ..checks import Section
from ..host import module_of
from .blocks import norm_of

_CPU = torch.device("cpu")


@torch.no_grad()
def clip_each_example(
    nlp: Language,
    examples: Sequence[Example],
    sclip: float,
    *,
    drop: float = 0.0,
    losses: dict[str, float] | None = None,
) -> None:
    """Compute the gradient of each example, clip it to a norm over all params, and leave the sum in the models. Call
    `finish_update` of each component to make the update; with `normalize = "examples"`, it uses the mean.

    nlp (Language): A pipeline, initialized. Its current gradients are dropped.
    sclip (float): The largest norm of an example's gradient.
    drop, losses: As for `nlp.update`.
    RAISES (ConfigError): `sclip` is not above 0.
    """
    Section("clip_each_example", allows_texts=False).number("sclip", sclip, above=0.0)
    total: dict[Any, torch.Tensor] = {}
    clear(nlp)
    for example in examples:
        with torch.enable_grad():
            nlp.update([example], drop=drop, losses=losses, sgd=False)  # type: ignore[arg-type]
        found = dict(grads_of(nlp))
        norm = math.sqrt(math.fsum(norm_of(grad) ** 2 for grad in found.values()))
        factor = sclip / norm if norm > sclip else 1.0
        for key, grad in found.items():
            if key in total:
                total[key].add_(grad, alpha=factor)
            else:
                total[key] = grad * factor
        clear(nlp)
    for model in models_of(nlp):
        for node in model.walk():
            for name in node.param_names:
                if (node.id, name) in total:
                    node.inc_grad(name, torch2xp(total[node.id, name]))  # type: ignore[arg-type]
            for shim in node.shims:
                for param in getattr(module_of(shim), "parameters", tuple)():
                    if param in total:
                        param.grad = total[param]


def grads_of(nlp: Language) -> Iterator[tuple[Any, torch.Tensor]]:
    """All gradients, by (node id, name) for thinc's params and by the param for torch's."""
    for model in models_of(nlp):
        for node in model.walk():
            for name in node.param_names:
                if node.has_grad(name):
                    grad = node.get_grad(name)  # the parser keeps some on the CPU, whatever the ops are
                    yield (node.id, name), xp2torch(grad, device=_CPU if isinstance(grad, numpy.ndarray) else None)
            for shim in node.shims:
                for param in getattr(module_of(shim), "parameters", tuple)():
                    if param.grad is not None:
                        yield param, param.grad


def clear(nlp: Language) -> None:
    """Set all gradients to zero, in place."""
    for _, grad in grads_of(nlp):
        grad.zero_()


def models_of(nlp: Language) -> list[Model[Any, Any]]:
    found = [getattr(proc, "model", None) for _, proc in nlp.pipeline]
    return [model for model in found if isinstance(model, Model)]
