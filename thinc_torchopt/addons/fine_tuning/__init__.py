"""Transformers that fit into memory: `[training.optimizer.fine_tuning]`.

settings.py is the block. transformers.py finds the transformers of a pipeline.

    run.py       for a run: windows.py cuts texts into windows that are counted in wordpieces, batches.py reads those of
                 similar length together, saving.py finds the windows of words for the saved pipeline; checkpointing.py
                 computes layers again in the backward pass, attention.py chooses how attention is computed
    batcher.py   batches of texts that have similar numbers of wordpieces
    layers.py    the lowest layers, which are frozen
"""

from typing import Final

from .batcher import batch_by_padded_pieces
from .batches import split_by_length
from .checkpointing import layers_of
from .settings import FineTuning
from .transformers import Transformer, transformers_of
from .windows import PieceCounter, PieceWindows, count_lost

STABILITY: Final = "provisional"

__all__ = [
    "FineTuning",
    "PieceCounter",
    "PieceWindows",
    "Transformer",
    "batch_by_padded_pieces",
    "count_lost",
    "layers_of",
    "split_by_length",
    "transformers_of",
]
