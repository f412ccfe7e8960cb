"""Transformers that fit into memory: `[training.optimizer.fine_tuning]`.

settings.py is the block. transformers.py finds the transformers of a pipeline. windows.py cuts texts into windows that
are counted in wordpieces, batches.py runs windows of similar length together, saving.py makes the saved pipeline an
ordinary one.
"""

from .settings import FineTuning

__all__ = ["FineTuning"]
