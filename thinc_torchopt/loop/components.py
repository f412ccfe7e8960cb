"""Facts about the components of a pipeline."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from spacy.language import Language
from thinc.util import xp2torch

from ..core.errors import PipelineWarning
from ..core.params import torch_params


def is_trained(proc: Any) -> bool:
    """Whether spaCy's loop calls a component's `finish_update`."""
    return getattr(proc, "is_trainable", False) and proc.model not in (True, False, None)


def sums_of_gradients(nlp: Language) -> list[str]:
    """The components whose "loss" is not a loss: for a tok2vec or transformer with listeners, spaCy reports the sum of
    the squared gradients.
    """
    return [name for name, proc in nlp.pipeline if getattr(proc, "listening_components", None)]


def grads_of(model: Any) -> Iterator[torch.Tensor]:
    """The gradients of a component, thinc's and torch's."""
    for node in model.walk():
        for name in node.param_names:
            if node.has_grad(name):
                yield xp2torch(node.get_grad(name))
        for shim in node.shims:
            yield from (param.grad for _, param in torch_params(shim) if param.grad is not None)


def warn_of_nothing_to_train(nlp: Language, exclude: list[str]) -> None:
    """Warn if no component is trained. The run continues, as in spaCy."""
    if not any(is_trained(proc) for name, proc in nlp.pipeline if name not in exclude):
        warnings.warn(
            PipelineWarning(
                f"Nothing to train in the pipeline {nlp.pipe_names}: no trainable component, or all are frozen "
                f"({exclude}). If that is not intended, remove one from [training] frozen_components."
            ),
            stacklevel=4,
        )
