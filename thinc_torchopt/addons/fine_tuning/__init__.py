"""Transformers that fit into memory: `[training.optimizer.fine_tuning]`.

settings.py is the block, and its part of a run. transformers.py finds the transformers of a pipeline.
windows.py cuts texts into windows that are counted in wordpieces, and finds the windows of words for the saved
pipeline; batches.py reads those of similar length together; modules.py computes layers again in the backward pass, and
chooses how attention is computed. batcher.py makes batches of texts that have similar numbers of wordpieces.
"""

from typing import Final

from .batcher import batch_by_padded_pieces
from .settings import FineTuning
from .transformers import Transformer, transformers_of
from .windows import count_lost

STABILITY: Final = "provisional"
