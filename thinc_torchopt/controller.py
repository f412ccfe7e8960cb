"""Rules that steer a training, for Python. They live in addons/controller/."""

from .addons.controller import (
    Metric,
    Operation,
    RunHandle,
    TrainerController,
    controller_metrics,
    controller_operations,
    register_metric_handlers,
    register_operation_handlers,
    trainer_controller,
)
from .loop.events import Control

__all__ = [
    "Control",
    "Metric",
    "Operation",
    "RunHandle",
    "TrainerController",
    "controller_metrics",
    "controller_operations",
    "register_metric_handlers",
    "register_operation_handlers",
    "trainer_controller",
]
