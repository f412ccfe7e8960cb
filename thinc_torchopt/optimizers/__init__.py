"""The optimizer, as thinc and spaCy know it. Open torch_optimizer.py first, then update/: one update, from top to bottom.

trained.py is all that an optimizer has of its params, drop_ins.py offers thinc's own optimizers at torch's speed.
"""

from .drop_ins import SGD, Adam, RAdam
from .torch_optimizer import TorchOptimizer, create_optimizer

__all__ = [
    "SGD",
    "Adam",
    "RAdam",
    "TorchOptimizer",
    "create_optimizer",
]
