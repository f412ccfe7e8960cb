"""Train spaCy pipelines with PyTorch's optimizers, from the config alone.

Names are imported when they are first used: `import thinc_torchopt` loads neither torch nor spaCy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .about import __version__

if TYPE_CHECKING:
    from .algorithms import Algorithm
    from .attachments import Attachment
    from .learn_rate.controller import LearnRateController
    from .optimizers import SGD, Adam, RAdam, TorchOptimizer
    from .state import StateMapping, preserve_optimizer_state
    from .training import Checkpoints

_HOME = {
    "Adam": "optimizers",
    "Algorithm": "algorithms",
    "Attachment": "attachments",
    "Checkpoints": "training",
    "LearnRateController": "learn_rate.controller",
    "RAdam": "optimizers",
    "SGD": "optimizers",
    "StateMapping": "state",
    "TorchOptimizer": "optimizers",
    "preserve_optimizer_state": "state",
    "train_while_improving": "training",
}

__all__ = [
    "SGD",
    "Adam",
    "Algorithm",
    "Attachment",
    "Checkpoints",
    "LearnRateController",
    "RAdam",
    "StateMapping",
    "TorchOptimizer",
    "__version__",
    "preserve_optimizer_state",
    "train_while_improving",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
