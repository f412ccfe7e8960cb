"""What a TorchOptimizer is made of, as its base classes see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from thinc.api import Optimizer

from ..averages import AverageSettings
from ..controller import ControllerSettings
from ..groups import Cascade, FrozenGrads
from ..types import CheckpointSettings, DistributedSettings, RollbackSettings
from .noted import NotedGrads
from .settings import MovingSettings
from .step import Step
from .trained import TrainedParams


class Parts(Optimizer, ABC):
    """The parts, and what each is about. TorchOptimizer puts them together.

    checkpoint, rollback, rules, distributed: Settings, for the training loop; or None.
    _settings: `learn_rate`, `grad_clip`, and all schedules.
    _cascade: What the settings say of each param.
    _average_settings: Which averages are kept. None: none.
    _noted: Gradients that wait for the next update.
    _step: Makes updates.
    _frozen_grads: For which torch params no gradients are computed.
    _trained: The params, their groups, learning rates, state and averages. Built anew when a state is loaded.
    _is_settled: The training is over, and the params are what is saved.
    _lock: Held by what updates, reads or changes all of this: see lock.py.
    """

    checkpoint: CheckpointSettings | None
    rollback: RollbackSettings | None
    rules: ControllerSettings | None
    distributed: DistributedSettings | None
    _settings: MovingSettings
    _cascade: Cascade
    _average_settings: AverageSettings | None
    _noted: NotedGrads
    _step: Step
    _frozen_grads: FrozenGrads
    _trained: TrainedParams
    _is_settled: bool
    _lock: Any

    @abstractmethod
    def _no_params(self, step: int) -> TrainedParams:
        """What an optimizer that has met no params has of them. step (int): The step that comes."""

    @abstractmethod
    def _meet_no_params(self) -> None:
        """Forget all params."""
