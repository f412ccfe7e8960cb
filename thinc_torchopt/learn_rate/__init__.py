"""The control of learning rates. Start reading in writer.py, the only code that writes the `lr` of torch's param
groups.

watch.py, groups.py: optimizers and groups as the writer left them, and changes by other code. history.py: past rates.
controller.py: the writer for a loop of your own, by policies: policies.py, by_name.py; watchdog.py counts its failures
and slow work. new_params.py: new params of an optimizer without a writer.
"""

from .controller import LearnRateController
from .groups import NEW_PARAMS_FACTOR, WatchedGroup, rate_of
from .history import Snapshot
from .new_params import add_new_params, warm_up_new_params
from .policies import Adaptive, Constant, Cosine, FromFunction, FromSchedule, Frozen, Policy, Warmup
from .watch import WatchedOptimizer, warn_of_steps_without
from .watchdog import CircuitBreaker
from .writer import RateWriter, WriterState, driver_of

__all__ = [
    "NEW_PARAMS_FACTOR",
    "Adaptive",
    "CircuitBreaker",
    "Constant",
    "Cosine",
    "FromFunction",
    "FromSchedule",
    "Frozen",
    "LearnRateController",
    "Policy",
    "RateWriter",
    "Snapshot",
    "Warmup",
    "WatchedGroup",
    "WatchedOptimizer",
    "WriterState",
    "add_new_params",
    "driver_of",
    "rate_of",
    "warm_up_new_params",
    "warn_of_steps_without",
]
