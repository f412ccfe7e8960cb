"""Rules that steer a training run: when to check, what to check, what to do. Open controller.py first.

The controller is a plain object that knows nothing of spaCy or torch. ../events.py lists the events and what they
carry; definition_file.py reads a definition, in_config.py makes one of blocks of the config, named_rules.py has those
with a name; definition.py checks it. rules.py evaluates rules, which compiler.py and sandbox.py make safe; metrics.py,
series.py, run_metrics.py and operations.py have the classes that a definition can name. values.py copies values and
picks those that a rule uses, rolling.py has their statistics, messages.py fills texts with them.
"""

from ..events import EVENTS, Control
from .controller import ControllerSettings, Firing, TrainerController, trainer_controller
from .definition import RULE_KEYS, ControllerSpec
from .in_config import rules_in
from .metrics import Metric, controller_metrics, register_metric_handlers
from .operations import (
    AveragesControl,
    DecayControl,
    FreezeControl,
    HFControls,
    KeepBestControl,
    LearnRateControl,
    LogControl,
    Operation,
    RollbackControl,
    RunHandle,
    controller_operations,
    register_operation_handlers,
)
from .rules import Rule
from .sandbox import FUNCTIONS, MetricUnavailable
from .values import Path, value_at

__all__ = [
    "EVENTS",
    "FUNCTIONS",
    "RULE_KEYS",
    "AveragesControl",
    "Control",
    "ControllerSettings",
    "ControllerSpec",
    "DecayControl",
    "Firing",
    "FreezeControl",
    "HFControls",
    "KeepBestControl",
    "LearnRateControl",
    "LogControl",
    "Metric",
    "MetricUnavailable",
    "Operation",
    "Path",
    "RollbackControl",
    "Rule",
    "RunHandle",
    "TrainerController",
    "controller_metrics",
    "controller_operations",
    "register_metric_handlers",
    "register_operation_handlers",
    "rules_in",
    "trainer_controller",
    "value_at",
]
