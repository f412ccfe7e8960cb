"""What can be looked at: params, groups, learning rates, counters."""

from __future__ import annotations

from collections.abc import Collection

import torch

from ..learn_rate import LearnRateController
from ..params import Pattern
from ..types import ClipBy, ParamInfo
from .parts import Parts


class Described(Parts):
    """Read-only views of an optimizer."""

    @property
    def params(self) -> dict[str, torch.Tensor]:
        """The params that are optimized, by lasting name. Thinc's arrays as tensors that share their memory. Frozen
        ones are left out.
        """
        return {param.name: param.tensor for param in self._trained.params if param.group is not None}

    @property
    def controller(self) -> LearnRateController:
        """The controller of the learning rates: their history, changes by other code, and more. A new object after
        loading a state.
        """
        return self._trained.controller

    @property
    def learn_rates(self) -> dict[str, float]:
        """The learning rate of the last step by param group: its name in the config, or several joined by "+"; else
        "default".
        """
        return self._trained.groups.learn_rates() or {"default": self.learn_rate}

    def describe(self, names: Collection[str] | None = None) -> list[ParamInfo]:
        """Describe each param, frozen ones too: its group, learning rate and options at this step.

        names (Collection[str]): Only of these. None: of all.
        """
        return [
            self._trained.groups.describe(param)
            for param in self._trained.params
            if names is None or param.name in names
        ]

    @property
    def patterns(self) -> list[Pattern]:
        """All patterns over names in the settings."""
        return self._cascade.patterns

    @property
    def torch_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The torch optimizers inside: "algorithm", and "algorithm.fallback" if there is one. They are built when
        params come.
        """
        return {found.name: found.optimizer for found in self._trained.groups.algorithms}

    @property
    def clip_by(self) -> ClipBy:
        """What `grad_clip` limits."""
        return self._step.clip_by

    @property
    def grad_norm(self) -> float | None:
        """The 2-norm over all gradients of the last update, before clipping. None: it was not measured."""
        return self._step.grad_norm

    @property
    def skipped_updates(self) -> int:
        """How many updates were skipped because of a gradient that was not finite, or of a spike."""
        return self._step.guard.skipped

    @property
    def grad_spikes(self) -> int:
        """How many spikes were found, skipped or scaled down."""
        return self._step.guard.spikes

    @property
    def bad_updates_in_a_row(self) -> int:
        """How many of the last updates in a row had gradients that were not finite, or a spike."""
        return self._step.guard.bad_in_a_row

    @property
    def stopped_grads(self) -> set[int]:
        """The ids of torch params for which, inside `training`, no gradients are computed."""
        return self._frozen_grads.ids
