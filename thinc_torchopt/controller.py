"""Rules that steer a training, for Python. They live in addons/controller/."""

from .addons.controller import (
    Metric,
    Operation,
    TrainerController,
    controller_metrics,
    controller_operations,
    trainer_controller,
)
from .loop.events import Control

__all__ = [
    "Control",
    "Metric",
    "Operation",
    "TrainerController",
    "controller_metrics",
    "controller_operations",
    "trainer_controller",
]
