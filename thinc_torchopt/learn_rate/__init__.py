"""The control of learning rates. Start reading in writer.py, the only writer of the `lr` of torch's param groups.

watch.py, groups.py: what optimizers and their groups were like when it left them, and what has changed since.
watchdog.py: how it fares. history.py: what is kept.
controller.py: the writer for a loop of your own, by policies: policies.py, by_name.py.
"""

from .by_name import NAMED, NamedPolicy, settings_of
from .controller import LearnRateController
from .groups import NEW_PARAMS_FACTOR, WatchedGroup
from .history import Snapshot
from .policies import (
    Adaptive,
    Constant,
    Cosine,
    FromFunction,
    FromSchedule,
    Frozen,
    Policy,
    Warmup,
    kind_of,
    source_of,
)
from .watch import WatchedOptimizer, warn_of_steps_without
from .watchdog import CircuitBreaker
from .writer import RateWriter, WriterState, driver_of

__all__ = [
    "NAMED",
    "NEW_PARAMS_FACTOR",
    "Adaptive",
    "CircuitBreaker",
    "Constant",
    "Cosine",
    "FromFunction",
    "FromSchedule",
    "Frozen",
    "LearnRateController",
    "NamedPolicy",
    "Policy",
    "RateWriter",
    "Snapshot",
    "Warmup",
    "WatchedGroup",
    "WatchedOptimizer",
    "WriterState",
    "driver_of",
    "kind_of",
    "settings_of",
    "source_of",
    "warn_of_steps_without",
]
