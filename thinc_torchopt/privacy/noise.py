"""The noise of private updates, from a generator of its own."""

from __future__ import annotations

import secrets
from collections.abc import Collection

import torch
from spacy.language import Language
from thinc.api import xp2torch
from torch.nn import Parameter

from ..types import Key
from .slots import Slot, add_grad, grad_of, slots_of


class Noise:
    """Adds Gaussian noise to the gradients of a pipeline.

    seed (int | None): None: from the system's source of randomness.
    """

    def __init__(self, seed: int | None):
        # On the CPU, so that all machines draw the same from a state.
        self._generator = torch.Generator()
        self._generator.manual_seed(secrets.randbits(63) if seed is None else seed)

    @torch.no_grad()
    def add(
        self, nlp: Language, exclude: Collection[str], frozen: Collection[Key], *, std: float, divide_by: float
    ) -> None:
        """Add noise to the gradient of each param that is trained, and divide it. One without a gradient gets noise.

        std (float): The standard deviation of the noise.
        divide_by (float): The number by which the sum with its noise is divided.
        """
        for slot in slots_of(nlp, exclude, frozen):
            like = _values_of(slot)
            if grad_of(slot) is None:
                add_grad(slot, torch.zeros_like(like))
            grad = grad_of(slot)
            tensor = grad if isinstance(grad, torch.Tensor) else xp2torch(grad)
            self.add_to(tensor, std)
            tensor.div_(divide_by)

    @torch.no_grad()
    def add_to(self, tensor: torch.Tensor, std: float) -> None:
        """Add noise to a tensor, in place. std (float): Its standard deviation. 0: none."""
        if std:
            tensor.add_(torch.randn(tensor.shape, generator=self._generator).to(tensor), alpha=std)

    @property
    def state(self) -> torch.Tensor:
        return self._generator.get_state()

    @state.setter
    def state(self, state: torch.Tensor) -> None:
        self._generator.set_state(state)


def _values_of(slot: Slot) -> torch.Tensor:
    if isinstance(slot, Parameter):
        return slot.detach()
    node, name = slot
    values: torch.Tensor = xp2torch(node.get_param(name))
    return values
