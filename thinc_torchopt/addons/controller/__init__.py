"""Rules that steer a training run: when to check, what to check, what to do. Open controller.py first.

The controller is a plain object that knows nothing of spaCy or torch. loop/events.py lists the events and what they
carry; definition_file.py reads a definition, settings.py makes one of blocks of the config, named_rules.py has those
with a name; definition.py checks it. rules.py checks rules, and evaluator.py evaluates them by simpleeval; metrics.py,
series.py, run_metrics.py and operations.py have the classes that a definition can name. values.py copies values,
picks those that a rule uses, and fills texts with them. run_rules.py connects them with a run.
"""

from typing import Final

from .controller import TrainerController
from .definition import ControllerSpec
from .metrics import Metric, controller_metrics, register_metric_handlers
from .operations import HFControls, Operation, RunHandle, controller_operations, register_operation_handlers
from .settings import ControllerSettings, trainer_controller

STABILITY: Final = "provisional"
