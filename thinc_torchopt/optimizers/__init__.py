"""The optimizer, as thinc and spaCy know it. Open torch_optimizer.py first.

trained.py has everything that an optimizer keeps about its params; drop_ins.py has thinc's optimizers at torch's speed.
"""

from .drop_ins import SGD, Adam, RAdam
from .torch_optimizer import TorchOptimizer, create_optimizer
from .trained import TrainedParams

__all__ = [
    "SGD",
    "Adam",
    "RAdam",
    "TorchOptimizer",
    "TrainedParams",
    "create_optimizer",
]
