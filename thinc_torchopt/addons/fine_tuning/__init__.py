"""Transformers that fit into memory: `[training.optimizer.fine_tuning]`.

settings.py is the block. transformers.py finds the transformers of a pipeline. windows.py cuts texts into windows that
are counted in wordpieces, batches.py runs windows of similar length together, saving.py makes the saved pipeline an
ordinary one.
"""

from .batches import split_by_length
from .settings import FineTuning
from .transformers import Transformer, transformers_of
from .windows import PieceCounter, PieceWindows, count_lost

__all__ = [
    "FineTuning",
    "PieceCounter",
    "PieceWindows",
    "Transformer",
    "count_lost",
    "split_by_length",
    "transformers_of",
]
