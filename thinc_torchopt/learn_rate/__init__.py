"""The control of learning rates. Start reading in controller.py, the only writer of the `lr` of torch's param groups.

watched.py: which optimizers and groups it has. watch.py, groups.py: what each was like when it left it. integrity.py:
    what has changed since.
policies.py, by_name.py: which rate comes next. conservative.py, runtime_guards.py: how it fares. history.py, saving.py:
    what is kept.
"""

from .by_name import NAMED, NamedPolicy, settings_of
from .conservative import CircuitBreaker
from .controller import LearnRateController, driver_of
from .groups import NEW_PARAMS_FACTOR
from .history import Snapshot
from .policies import Adaptive, Constant, Cosine, FromFunction, FromSchedule, Frozen, Policy, Warmup, source_of
from .watch import warn_of_steps_without

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
    "Snapshot",
    "Warmup",
    "driver_of",
    "settings_of",
    "source_of",
    "warn_of_steps_without",
]
