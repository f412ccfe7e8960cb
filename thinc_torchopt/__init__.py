"""Train spaCy pipelines with PyTorch's optimizers, from the config alone.

Names are imported when they are first used: `import thinc_torchopt` loads neither torch nor spaCy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .about import __version__

if TYPE_CHECKING:
    from .algorithm import Algorithm
    from .drop_ins import SGD, Adam, RAdam
    from .learn_rate import LearnRateController
    from .optimizers import TorchOptimizer
    from .own_loop import Checkpoints
    from .state_growth import StateMapping, preserve_optimizer_state

_HOME = {
    "Adam": "drop_ins",
    "Algorithm": "algorithm",
    "Checkpoints": "own_loop",
    "LearnRateController": "learn_rate",
    "RAdam": "drop_ins",
    "SGD": "drop_ins",
    "StateMapping": "state_growth",
    "TorchOptimizer": "optimizers",
    "preserve_optimizer_state": "state_growth",
}

__all__ = [
    "SGD",
    "Adam",
    "Algorithm",
    "Checkpoints",
    "LearnRateController",
    "RAdam",
    "StateMapping",
    "TorchOptimizer",
    "__version__",
    "preserve_optimizer_state",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
