"""Train spaCy pipelines with PyTorch's optimizers, from the config alone.

Names are imported when they are first used: `import thinc_torchopt` loads neither torch nor spaCy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .about import __version__

if TYPE_CHECKING:
    from .addons.own_loops import LearnRateController
    from .addons.own_loops.checkpoints import Checkpoints
    from .core.algorithms import Algorithm
    from .core.attachments import Attachment
    from .core.drop_ins import SGD, Adam, RAdam
    from .core.labels import add_labels
    from .core.ops import fastest_ops
    from .core.optimizer import TorchOptimizer
    from .core.rates import warm_up_new_params
    from .core.state import StateMapping, preserve_optimizer_state

_HOME = {
    "Adam": "core.drop_ins",
    "Algorithm": "core.algorithms",
    "Attachment": "core.attachments",
    "Checkpoints": "addons.own_loops.checkpoints",
    "LearnRateController": "addons.own_loops",
    "RAdam": "core.drop_ins",
    "SGD": "core.drop_ins",
    "StateMapping": "core.state",
    "TorchOptimizer": "core.optimizer",
    "add_labels": "core.labels",
    "fastest_ops": "core.ops",
    "preserve_optimizer_state": "core.state",
    "train_while_improving": "loop.run",
    "warm_up_new_params": "core.rates",
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
    "add_labels",
    "fastest_ops",
    "preserve_optimizer_state",
    "train_while_improving",
    "warm_up_new_params",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
