"""The control of learning rates. Start reading in controller.py, the only writer of the `lr` of torch's param groups."""

from .circuit_breaker import CircuitBreaker
from .controller import LearnRateController
from .groups import NEW_PARAMS_FACTOR
from .history import Snapshot
from .named_policies import NAMED, NamedPolicy, settings_of
from .policies import Constant, FromFunction, FromSchedule, Live, LiveByMetrics, Policy
from .proportional import Adaptive, Cosine, Frozen, Warmup

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
    "Live",
    "LiveByMetrics",
    "NamedPolicy",
    "Policy",
    "Snapshot",
    "Warmup",
    "settings_of",
]
