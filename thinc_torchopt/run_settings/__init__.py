"""The functions behind the blocks checkpoint, budget and distributed of [training.optimizer]: they check settings, and
import none of the rooms that act on them.
"""

from .budget import Budget, read_limit
from .checkpoint import CHECKPOINT, Checkpoint
from .distributed import DISTRIBUTED, Distributed

__all__ = ["CHECKPOINT", "DISTRIBUTED", "Budget", "Checkpoint", "Distributed", "read_limit"]
